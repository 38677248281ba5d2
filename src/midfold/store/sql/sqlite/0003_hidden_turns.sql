-- Turns that a gateway kept from its client. `place` is whose conversation it is and under which system prompt, as a
-- hash; `chain` stands for all messages before them. They go with `session`, or when nobody has used them for long.
CREATE TABLE hidden_turns (
    place TEXT NOT NULL,
    chain TEXT NOT NULL,
    session TEXT NOT NULL,
    used INTEGER NOT NULL,
    digest BLOB NOT NULL,
    codec INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (place, chain)
);
CREATE INDEX hidden_turns_session ON hidden_turns (session);
CREATE INDEX hidden_turns_used ON hidden_turns (used);

-- Whether a handle is one of an owner's sessions is asked of all of them at once.
CREATE INDEX handles_handle ON handles (handle);

-- What the body of a row must be, as a hash over its kind and the body's digest; rows of older versions have none.
ALTER TABLE prompts ADD COLUMN seal BLOB;
