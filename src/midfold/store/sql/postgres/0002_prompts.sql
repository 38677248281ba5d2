-- A message is looked up by what it is and where it stands: so a beginning of a history is found in any session.

DROP INDEX messages_body;
CREATE INDEX messages_body ON messages (body, position);

-- What stands beside the messages from `position` on, the system prompt or the tools, as JSON; no body: nothing.
CREATE TABLE prompts (
    session bigint NOT NULL REFERENCES sessions (id),
    body bigint REFERENCES bodies (id),
    at bigint NOT NULL,
    number integer NOT NULL,
    position integer NOT NULL,
    kind text COLLATE "C" NOT NULL CHECK (kind IN ('system', 'tools')),
    PRIMARY KEY (session, kind, number)
);
CREATE INDEX prompts_body ON prompts (body) WHERE body IS NOT NULL;

-- Which rules the tokens follow: those of words.VERSION when they were made.
ALTER TABLE words ADD COLUMN version smallint NOT NULL DEFAULT 1;
ALTER TABLE words ALTER COLUMN version DROP DEFAULT;
