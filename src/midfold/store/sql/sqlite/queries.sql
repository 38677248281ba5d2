-- Queries for SQLite only.

-- name: body_by_digest
SELECT id FROM bodies WHERE digest = ?

-- name: last_body
SELECT max(id) FROM bodies

-- name: add_body
INSERT INTO bodies (digest, indexed, codec, data) VALUES (?, 0, ?, ?)

-- name: messages_at
SELECT m.position, m.role, m.at,
       (SELECT o.chain FROM messages o WHERE o.session = m.session AND o.position = m.position - 1),
       m.chain, b.digest, b.codec, b.data
FROM messages m JOIN bodies b ON b.id = m.body
WHERE m.session = :session AND m.position IN (SELECT value FROM json_each(:positions)) ORDER BY m.position

-- name: digests_like
SELECT b.digest, (SELECT min(m.position) FROM messages m WHERE m.body = b.id AND m.session = :session)
FROM bodies b WHERE b.digest >= :low AND b.digest < :high

-- name: hidden_turns
SELECT chain, digest, CASE WHEN used < {now} - :rest THEN 1 ELSE 0 END FROM hidden_turns
WHERE place = :place AND chain IN (SELECT value FROM json_each(:chains))

-- name: hidden_turns_data
SELECT chain, digest, codec, data FROM hidden_turns WHERE place = :place AND chain IN (SELECT value FROM json_each(:chains))

-- name: use_hidden_turns
UPDATE hidden_turns SET used = {now} WHERE place = :place AND chain IN (SELECT value FROM json_each(:chains))

-- name: lock_migrations
SELECT 1

-- name: has_migrations
SELECT 1 FROM sqlite_master WHERE name = 'midfold_migrations'

-- name: make_migrations
CREATE TABLE IF NOT EXISTS midfold_migrations (
    number INTEGER PRIMARY KEY,
    checksum TEXT NOT NULL,
    words INTEGER NOT NULL,
    at INTEGER NOT NULL
)

-- name: drop_old_words
INSERT INTO words (words) VALUES ('delete-all')

-- name: drop_waiting_words
DELETE FROM waiting

-- CROSS JOIN prevents the planner from scanning every block of a segment.
-- name: word_blocks
SELECT p.key, s.session, s.start, s.stop, b.data
FROM json_each(:words) p CROSS JOIN word_segments s CROSS JOIN word_blocks b
WHERE s.session = :session AND b.session = s.session AND b.start = s.start
  AND b.word <= json_extract(p.value, '$[1]') AND b.word >=
      (SELECT max(c.word) FROM word_blocks c
       WHERE c.session = s.session AND c.start = s.start AND c.word <= json_extract(p.value, '$[0]'))

-- name: all_word_blocks
SELECT p.key, s.session, s.start, s.stop, b.data
FROM json_each(:words) p CROSS JOIN word_segments s CROSS JOIN word_blocks b
WHERE b.session = s.session AND b.start = s.start
  AND b.word <= json_extract(p.value, '$[1]') AND b.word >=
      (SELECT max(c.word) FROM word_blocks c
       WHERE c.session = s.session AND c.start = s.start AND c.word <= json_extract(p.value, '$[0]'))
