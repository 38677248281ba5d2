-- How large the window of a model turned out to be, for one key at one upstream: what a refusal named, the smallest size
-- that was refused, the largest that was answered. `name` is a hash over the key and the rest.
CREATE TABLE IF NOT EXISTS learned_windows (
    name text PRIMARY KEY,
    owner text NOT NULL,
    upstream text NOT NULL,
    model text NOT NULL,
    beta text NOT NULL,
    named bigint NOT NULL,
    refused bigint NOT NULL,
    fitted bigint NOT NULL,
    ends bigint NOT NULL
);
