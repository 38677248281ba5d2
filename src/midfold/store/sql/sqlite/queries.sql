-- What only SQLite is asked.

-- name: body_by_digest
SELECT id, indexed FROM bodies WHERE digest = ?

-- name: last_body
SELECT max(id) FROM bodies

-- name: add_body
INSERT INTO bodies (digest, indexed, codec, data) VALUES (?, ?, ?, ?)

-- name: index_words
INSERT INTO words (rowid, tokens) VALUES (?, ?)

-- name: unindex_words
INSERT INTO words (words, rowid, tokens) VALUES ('delete', :id, :tokens)

-- name: waiting
SELECT b.id, b.digest, b.codec, b.data FROM waiting w JOIN bodies b ON b.id = w.body
WHERE w.body > :after ORDER BY w.body LIMIT :most

-- name: size_of_waiting
SELECT count(*), total(size) FROM waiting

-- name: wait_for_index
INSERT INTO waiting (body, size) VALUES (?, ?)

-- name: wait_no_longer
DELETE FROM waiting WHERE body = :id

-- name: empty_index
INSERT INTO words (words) VALUES ('delete-all')

-- name: all_wait
INSERT INTO waiting (body, size) SELECT id, length(data) FROM bodies WHERE indexed = 1
ON CONFLICT (body) DO NOTHING

-- name: find
SELECT s.name, m.position, m.role, m.at, s.dialect,
       (SELECT o.chain FROM messages o WHERE o.session = m.session AND o.position = m.position - 1),
       m.chain, b.digest, b.codec, b.data
FROM (SELECT body FROM (SELECT rowid AS body FROM words(:match) ORDER BY rowid DESC LIMIT :reach)
      UNION ALL SELECT value FROM json_each(:waiting)) w
JOIN messages m ON m.body = w.body
JOIN sessions s ON s.id = m.session
JOIN bodies b ON b.id = m.body
WHERE (:session IS NULL OR m.session = :session) AND (:role IS NULL OR m.role = :role)
  AND m.at >= :since AND m.at < :until
ORDER BY m.at DESC, m.position DESC LIMIT :most

-- name: orphan_words
SELECT (SELECT count(*) FROM words_docsize d WHERE NOT EXISTS
           (SELECT 1 FROM bodies b WHERE b.id = d.id AND b.indexed = 1))
     + (SELECT count(*) FROM waiting w WHERE NOT EXISTS
           (SELECT 1 FROM bodies b WHERE b.id = w.body AND b.indexed = 1))
     + (SELECT count(*) FROM bodies b WHERE b.indexed = 1 AND 1 <>
           (SELECT count(*) FROM words_docsize d WHERE d.id = b.id) + (SELECT count(*) FROM waiting w WHERE w.body = b.id))

-- name: stale_words
SELECT count(*) FROM words_docsize WHERE (SELECT min(words) FROM midfold_migrations) < :words

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
