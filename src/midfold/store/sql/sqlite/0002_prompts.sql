-- A message is looked up by what it is and where it stands: so a beginning of a history is found in any session.

DROP INDEX messages_body;
CREATE INDEX messages_body ON messages (body, position);

-- What stands beside the messages from `position` on, the system prompt or the tools, as JSON; no body: nothing.
CREATE TABLE prompts (
    session INTEGER NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('system', 'tools')),
    number INTEGER NOT NULL,
    position INTEGER NOT NULL,
    at INTEGER NOT NULL,
    body INTEGER,
    PRIMARY KEY (session, kind, number)
) WITHOUT ROWID;
CREATE INDEX prompts_body ON prompts (body) WHERE body IS NOT NULL;
