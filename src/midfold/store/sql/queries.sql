-- Queries for both databases. `:name` is a parameter, {now} the current time, {lock} locks rows until the transaction ends,
-- {bytewise} compares texts by their bytes, so that an index can be used for prefixes.

-- name: session
SELECT s.id, s.name, s.kind, p.name, s.root, s.forked, s.dialect, s.model, s.created, s.updated, s.ended, s.count,
       s.chain, s.compaction, s.compactions, s.memory,
       (SELECT m.chain FROM messages m WHERE m.session = s.id AND m.position = s.count - 1)
FROM sessions s LEFT JOIN sessions p ON p.id = s.parent
WHERE s.name = :name

-- name: locked_session
SELECT id, dialect, count, chain, compaction, compactions, kind, ended, root, {now}
FROM sessions WHERE name = :name {lock}

-- name: create_session
INSERT INTO sessions (name, kind, parent, root, forked, dialect, model, created, updated, memory)
VALUES (:name, :kind, :parent, :root, :forked, :dialect, :model, {now}, {now}, :memory)
ON CONFLICT (name) DO NOTHING
RETURNING id

-- name: sessions
SELECT s.id, s.name, s.kind, p.name, s.root, s.forked, s.dialect, s.model, s.created, s.updated, s.ended, s.count,
       s.chain, s.compaction, s.compactions, s.memory,
       (SELECT m.chain FROM messages m WHERE m.session = s.id AND m.position = s.count - 1)
FROM sessions s LEFT JOIN sessions p ON p.id = s.parent
WHERE s.updated < :before
ORDER BY s.updated DESC, s.id DESC LIMIT :most

-- name: sessions_under
SELECT s.id, s.name, s.kind, p.name, s.root, s.forked, s.dialect, s.model, s.created, s.updated, s.ended, s.count,
       s.chain, s.compaction, s.compactions, s.memory,
       (SELECT m.chain FROM messages m WHERE m.session = s.id AND m.position = s.count - 1)
FROM sessions s LEFT JOIN sessions p ON p.id = s.parent
WHERE s.name {bytewise} >= :under AND s.name {bytewise} < :beyond AND s.updated < :before
ORDER BY s.updated DESC, s.id DESC LIMIT :most

-- name: session_models
SELECT s.name, s.model, coalesce(k.client, '') FROM sessions s LEFT JOIN sketches k ON k.session = s.id
ORDER BY s.updated DESC, s.id DESC LIMIT :most

-- name: unused_sessions
SELECT name FROM sessions WHERE updated < {now} - :age AND created < {now} - :age ORDER BY updated, id

-- name: is_unused
SELECT 1 FROM sessions WHERE name = :name AND updated < {now} - :age AND created < {now} - :age

-- name: family
SELECT name FROM sessions WHERE (id = :root OR root = :root) AND kind <> 'continuation' ORDER BY id

-- name: children
SELECT name FROM sessions WHERE parent = :id AND kind = 'continuation' ORDER BY id

-- name: branches
SELECT count(*) FROM sessions WHERE root = :root

-- name: grow_session
UPDATE sessions SET count = :count, chain = :chain, updated = :used, dialect = :dialect, model = coalesce(:model, model)
WHERE id = :id

-- name: add_message
INSERT INTO messages (session, position, body, chain, role, at)
VALUES (:session, :position, :body, :chain, :role, :at)

-- name: append_by_key
SELECT first, count, digest FROM appends WHERE session = :session AND key = :key

-- name: add_append
INSERT INTO appends (session, key, first, count, digest) VALUES (:session, :key, :first, :count, :digest)

-- name: chain_at
SELECT chain FROM messages WHERE session = :session AND position = :position

-- name: knows_chain
SELECT 1
FROM bodies b JOIN messages m ON m.body = b.id JOIN sessions s ON s.id = m.session
WHERE b.digest = :digest AND m.position = :position AND m.chain = :chain
  AND substr(s.name, 1, length(CAST(:under AS text))) = :under LIMIT 1

-- name: session_with_chain
SELECT s.name, s.count
FROM bodies b JOIN messages m ON m.body = b.id JOIN sessions s ON s.id = m.session
WHERE b.digest = :digest AND m.position = :position AND m.chain = :chain
  AND substr(s.name, 1, length(CAST(:under AS text))) = :under
ORDER BY CASE WHEN s.count = m.position + 1 THEN 0 ELSE 1 END, CASE WHEN s.ended IS NULL THEN 0 ELSE 1 END,
         s.updated DESC, s.id DESC LIMIT 1

-- name: messages
SELECT m.position, m.role, m.at,
       (SELECT o.chain FROM messages o WHERE o.session = m.session AND o.position = m.position - 1),
       m.chain, b.digest, b.codec, b.data
FROM messages m JOIN bodies b ON b.id = m.body
WHERE m.session = :session AND m.position >= :start AND m.position < :stop
ORDER BY m.position LIMIT :most

-- name: view_messages
SELECT p.place, m.position, p.body,
       (SELECT o.chain FROM messages o WHERE o.session = m.session AND o.position = m.position - 1),
       m.chain, b.digest, b.codec, b.data
FROM pieces p
JOIN messages m ON m.session = p.session AND m.position >= p.first AND m.position < p.first + p.count
JOIN bodies b ON b.id = m.body
WHERE p.session = :session AND p.seq = :seq AND p.body IS NULL
UNION ALL
SELECT p.place, p.first, p.body, NULL, NULL, b.digest, b.codec, b.data
FROM pieces p JOIN bodies b ON b.id = p.body
WHERE p.session = :session AND p.seq = :seq
ORDER BY 1, 2

-- name: view_digests
SELECT p.place, m.position, b.digest
FROM pieces p
JOIN messages m ON m.session = p.session AND m.position >= p.first AND m.position < p.first + p.count
JOIN bodies b ON b.id = m.body
WHERE p.session = :session AND p.seq = :seq AND p.body IS NULL
UNION ALL
SELECT p.place, p.first, b.digest
FROM pieces p JOIN bodies b ON b.id = p.body
WHERE p.session = :session AND p.seq = :seq
ORDER BY 1, 2

-- name: compaction
SELECT seq, base, upto, at, fence, noted, undone, child, receipt, state
FROM compactions WHERE session = :session AND seq = :seq

-- name: compactions
SELECT c.seq, c.base, c.upto, c.at, c.fence, c.noted, c.undone, s.name, c.receipt, c.state
FROM compactions c LEFT JOIN sessions s ON s.id = c.child
WHERE c.session = :session ORDER BY c.seq

-- name: checkpoints
SELECT s.id, s.name, c.seq, c.noted, m.position + 1, m.chain
FROM sessions s
JOIN compactions c ON c.session = s.id
JOIN pieces p ON p.session = c.session AND p.seq = c.seq
     AND p.place = (SELECT max(l.place) FROM pieces l WHERE l.session = c.session AND l.seq = c.seq)
JOIN messages m ON m.session = c.session
     AND m.position = CASE WHEN p.body IS NULL AND p.first + p.count = c.upto THEN p.first ELSE c.upto END - 1
WHERE c.undone IS NULL
  AND (s.name = :name OR s.root = (SELECT r.id FROM sessions r WHERE r.name = :name))

-- name: compaction_in_force
SELECT 1 FROM sessions s JOIN compactions c ON c.session = s.id
WHERE s.name = :name AND c.seq = :seq AND c.undone IS NULL

-- name: checkpoint_pieces
SELECT p.place, p.first, p.count, b.digest, b.codec, b.data
FROM pieces p LEFT JOIN bodies b ON b.id = p.body
WHERE p.session = :session AND p.seq = :seq ORDER BY p.place

-- name: view_pieces
SELECT p.place, p.first, p.count, b.digest, p.body, b.codec, b.data
FROM pieces p LEFT JOIN bodies b ON b.id = p.body
WHERE p.session = :session AND p.seq = :seq ORDER BY p.place

-- name: add_compaction
INSERT INTO compactions (session, seq, base, upto, at, fence, noted, child, receipt, state)
VALUES (:session, :seq, :base, :upto, :at, :fence, :noted, :child, :receipt, :state)

-- name: set_state
UPDATE compactions SET state = :state WHERE session = :session AND seq = :seq

-- name: add_piece
INSERT INTO pieces (session, seq, place, first, count, body) VALUES (:session, :seq, :place, :first, :count, :body)

-- name: add_handle
INSERT INTO handles (session, handle, seq, place, first, count, body)
VALUES (:session, :handle, :seq, :place, :first, :count, :body)

-- name: set_compaction
UPDATE sessions SET compaction = :compaction, compactions = :compactions, memory = :memory, ended = :ended,
       updated = :now
WHERE id = :id

-- name: set_memory
UPDATE sessions SET memory = :memory
WHERE id = :id AND compaction = :compaction AND compactions = :compactions

-- name: undo_compaction
UPDATE compactions SET undone = :now WHERE session = :session AND seq = :seq

-- name: copy_messages
INSERT INTO messages (session, position, body, chain, role, at)
SELECT :target, position, body, chain, role, at
FROM messages WHERE session = :source AND position < :stop

-- name: copy_compaction
INSERT INTO compactions (session, seq, base, upto, at, fence, noted, receipt, state)
SELECT :target, seq, base, upto, at, fence, noted, receipt, state
FROM compactions WHERE session = :source AND seq = :seq

-- name: copy_pieces
INSERT INTO pieces (session, seq, place, first, count, body)
SELECT :target, seq, place, first, count, body FROM pieces WHERE session = :source AND seq = :seq

-- name: last_piece
SELECT place, first, count, body FROM pieces WHERE session = :session AND seq = :seq ORDER BY place DESC LIMIT 1

-- name: trim_compaction
UPDATE compactions SET upto = :upto WHERE session = :session AND seq = :seq

-- name: trim_piece
UPDATE pieces SET count = :count WHERE session = :session AND seq = :seq AND place = :place

-- name: drop_piece
DELETE FROM pieces WHERE session = :session AND seq = :seq AND place = :place

-- name: copy_handles
INSERT INTO handles (session, handle, seq, place, first, count, body)
SELECT :target, handle, seq, place, first, count, body FROM handles WHERE session = :source AND seq = :seq

-- name: copy_prompts
INSERT INTO prompts (session, kind, number, position, at, body, seal)
SELECT :target, kind, number, position, at, body, seal FROM prompts WHERE session = :source AND position < :stop

-- name: carry_prompts
INSERT INTO prompts (session, kind, number, position, at, body, seal)
SELECT :target, p.kind, 1, 0, p.at, p.body, p.seal FROM prompts p
WHERE p.session = :source AND p.body IS NOT NULL
  AND p.number = (SELECT max(o.number) FROM prompts o WHERE o.session = p.session AND o.kind = p.kind)

-- name: add_prompt
INSERT INTO prompts (session, kind, number, position, at, body, seal)
VALUES (:session, :kind, :number, :position, :at, :body, :seal)

-- name: last_prompts
SELECT p.kind, p.number, b.digest FROM prompts p LEFT JOIN bodies b ON b.id = p.body
WHERE p.session = :session
  AND p.number = (SELECT max(o.number) FROM prompts o WHERE o.session = p.session AND o.kind = p.kind)

-- name: current_prompts
SELECT p.kind, p.seal, b.digest, b.codec, b.data FROM prompts p LEFT JOIN bodies b ON b.id = p.body
WHERE p.session = :session AND p.body IS NOT NULL
  AND p.number = (SELECT max(o.number) FROM prompts o WHERE o.session = p.session AND o.kind = p.kind)

-- name: prompts
SELECT p.kind, p.position, p.at, p.body, p.seal, b.digest, b.codec, b.data FROM prompts p LEFT JOIN bodies b ON b.id = p.body
WHERE p.session = :session ORDER BY p.kind, p.number

-- name: handle
SELECT handle, max(seq) FROM handles
WHERE session = :session AND handle >= :low AND handle < :high AND seq <= :seq
GROUP BY handle ORDER BY handle LIMIT 2

-- name: sessions_with_handle
WITH RECURSIVE owners (id) AS (
    SELECT session FROM handles WHERE handle >= :low AND handle < :high
    UNION
    SELECT m.session FROM bodies b CROSS JOIN messages m WHERE m.body = b.id AND b.digest >= :first AND b.digest < :last
    UNION
    SELECT s.id FROM owners o CROSS JOIN sessions s WHERE s.parent = o.id AND s.kind = 'continuation'
)
SELECT s.name FROM owners o CROSS JOIN sessions s
WHERE s.id = o.id AND s.name {bytewise} >= :under AND s.name {bytewise} < :beyond
ORDER BY s.updated DESC, s.id DESC

-- name: handles
SELECT handle, seq, place, first, count, body FROM handles WHERE session = :session AND seq = :seq
ORDER BY handle, place

-- name: folds_by_handle
SELECT s.name, c.state
FROM handles h JOIN sessions s ON s.id = h.session JOIN compactions c ON c.session = h.session AND c.seq = h.seq
WHERE h.handle = :handle AND substr(s.name, 1, length(CAST(:under AS text))) = :under

-- name: pieces
SELECT seq, place, first, count, body FROM pieces WHERE session = :session AND seq = :seq ORDER BY place

-- name: seal_of_pieces
SELECT p.place, p.first, p.count, b.digest FROM pieces p LEFT JOIN bodies b ON b.id = p.body
WHERE p.session = :session AND p.seq = :seq ORDER BY p.place

-- name: seal_of_handles
SELECT h.handle, h.place, h.first, h.count, b.digest FROM handles h LEFT JOIN bodies b ON b.id = h.body
WHERE h.session = :session AND h.seq = :seq ORDER BY h.handle, h.place

-- name: handle_messages
SELECT h.place, m.position,
       (SELECT o.chain FROM messages o WHERE o.session = m.session AND o.position = m.position - 1),
       m.chain, b.digest, b.codec, b.data
FROM handles h
JOIN messages m ON m.session = h.session AND m.position >= h.first AND m.position < h.first + h.count
JOIN bodies b ON b.id = m.body
WHERE h.session = :session AND h.handle = :handle AND h.first IS NOT NULL
  AND h.seq = :seq
UNION ALL
SELECT h.place, 0, NULL, NULL, b.digest, b.codec, b.data
FROM handles h JOIN bodies b ON b.id = h.body
WHERE h.session = :session AND h.handle = :handle AND h.first IS NULL
  AND h.seq = :seq
ORDER BY 1, 2

-- name: message_by_digest
SELECT min(m.position), b.digest, b.codec, b.data
FROM bodies b CROSS JOIN messages m
WHERE m.body = b.id AND b.digest >= :low AND b.digest < :high AND m.session = :session AND m.position < :stop
GROUP BY b.digest, b.codec, b.data ORDER BY 1 LIMIT 1

-- name: count_messages
SELECT coalesce(sum(count), 0) FROM sessions

-- name: session_names
SELECT id, name, dialect FROM sessions

-- name: has_message
SELECT 1 FROM bodies b JOIN messages m ON m.body = b.id
WHERE b.digest >= :low AND b.digest < :high AND m.session = :session LIMIT 1

-- name: body
SELECT digest, codec, data FROM bodies WHERE id = :id

-- name: lease_acquire
INSERT INTO leases (session, holder, fence, expires) VALUES (:session, :holder, 1, {now} + :ttl)
ON CONFLICT (session) DO UPDATE
SET holder = excluded.holder, fence = leases.fence + 1, expires = excluded.expires
WHERE leases.expires <= {now}
RETURNING fence

-- name: lease_refresh
UPDATE leases SET expires = {now} + :ttl
WHERE session = :session AND holder = :holder AND fence = :fence AND expires > {now}

-- name: lease_release
UPDATE leases SET expires = 0 WHERE session = :session AND holder = :holder AND fence = :fence

-- name: lease_forget
DELETE FROM leases WHERE session = :session AND expires = 0

-- name: lease_held
SELECT 1 FROM leases
WHERE session = :session AND holder = :holder AND fence = :fence AND expires > {now} {lock}

-- name: lease
SELECT holder, fence, expires - {now} FROM leases WHERE session = :session

-- name: add_hidden_turns
INSERT INTO hidden_turns (place, chain, session, used, digest, codec, data)
VALUES (:place, :chain, :session, {now}, :digest, :codec, :data)
ON CONFLICT (place, chain) DO UPDATE
SET session = excluded.session, used = excluded.used, digest = excluded.digest, codec = excluded.codec,
    data = excluded.data

-- name: has_hidden_turns
SELECT 1 FROM hidden_turns WHERE place = :place LIMIT 1

-- name: page_of_hidden_turns
SELECT place, chain, digest, codec, data FROM hidden_turns
WHERE place > :place OR (place = :place AND chain > :chain) ORDER BY place, chain LIMIT :most

-- name: delete_hidden_turns
DELETE FROM hidden_turns WHERE session = :name

-- name: delete_unused_hidden_turns
DELETE FROM hidden_turns WHERE used < {now} - :age

-- name: delete_ended_turns
DELETE FROM hidden_turns WHERE used < {now} - :age AND substr(place, 1, :length) = :places

-- name: old_hidden_sessions
SELECT name FROM sessions WHERE substr(name, 1, 10) = 'gw-hidden-'

-- name: bodies_of
SELECT body FROM messages WHERE session = :session
UNION SELECT body FROM pieces WHERE session = :session AND body IS NOT NULL
UNION SELECT body FROM handles WHERE session = :session AND body IS NOT NULL
UNION SELECT body FROM prompts WHERE session = :session AND body IS NOT NULL

-- name: unreferenced
SELECT b.id FROM bodies b
WHERE b.id = :id
  AND NOT EXISTS (SELECT 1 FROM messages m WHERE m.body = b.id)
  AND NOT EXISTS (SELECT 1 FROM pieces p WHERE p.body = b.id)
  AND NOT EXISTS (SELECT 1 FROM handles h WHERE h.body = b.id)
  AND NOT EXISTS (SELECT 1 FROM prompts q WHERE q.body = b.id)
{lock}

-- name: delete_body
DELETE FROM bodies WHERE id = :id

-- name: delete_messages
DELETE FROM messages WHERE session = :session

-- name: delete_pieces
DELETE FROM pieces WHERE session = :session

-- name: delete_handles
DELETE FROM handles WHERE session = :session

-- name: delete_compactions
DELETE FROM compactions WHERE session = :session

-- name: delete_prompts
DELETE FROM prompts WHERE session = :session

-- name: delete_appends
DELETE FROM appends WHERE session = :session

-- name: delete_lease
DELETE FROM leases WHERE session = :name

-- name: forget_parent
UPDATE sessions SET parent = NULL WHERE parent = :session

-- name: delete_session
DELETE FROM sessions WHERE id = :session

-- name: orphan_bodies
SELECT count(*) FROM bodies b
WHERE NOT EXISTS (SELECT 1 FROM messages m WHERE m.body = b.id)
  AND NOT EXISTS (SELECT 1 FROM pieces p WHERE p.body = b.id)
  AND NOT EXISTS (SELECT 1 FROM handles h WHERE h.body = b.id)
  AND NOT EXISTS (SELECT 1 FROM prompts q WHERE q.body = b.id)

-- name: missing_bodies
SELECT count(*) FROM messages m WHERE NOT EXISTS (SELECT 1 FROM bodies b WHERE b.id = m.body)

-- name: orphan_rows
SELECT (SELECT count(*) FROM messages t WHERE NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = t.session))
     + (SELECT count(*) FROM compactions t WHERE NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = t.session))
     + (SELECT count(*) FROM appends t WHERE NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = t.session))
     + (SELECT count(*) FROM prompts t WHERE NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = t.session))
     + (SELECT count(*) FROM pieces t WHERE NOT EXISTS
           (SELECT 1 FROM compactions c WHERE c.session = t.session AND c.seq = t.seq))
     + (SELECT count(*) FROM handles t WHERE NOT EXISTS
           (SELECT 1 FROM compactions c WHERE c.session = t.session AND c.seq = t.seq))

-- name: chained
SELECT m.position, m.chain, b.digest FROM messages m JOIN bodies b ON b.id = m.body
WHERE m.session = :session AND m.position >= :start ORDER BY m.position LIMIT :most

-- name: versions
SELECT number, checksum FROM midfold_migrations ORDER BY number

-- name: add_version
INSERT INTO midfold_migrations (number, checksum, words, at) VALUES (:number, :checksum, :words, {now})

-- name: oldest_words
SELECT coalesce(min(words), 0) FROM midfold_migrations

-- name: newest_words
SELECT coalesce(max(words), 0) FROM midfold_migrations

-- name: set_words
UPDATE midfold_migrations SET words = :words WHERE words <> :words

-- name: add_turn
INSERT INTO turns (session, at, count, compaction, model, kind, prompt, completion, cache_read, cache_write)
VALUES (:session, :at, :count, :compaction, :model, :kind, :prompt, :completion, :cache_read, :cache_write)

-- name: turns
SELECT id, at, count, compaction, model, kind, prompt, completion, cache_read, cache_write
FROM turns WHERE session = :session ORDER BY id DESC LIMIT :most

-- name: newest_turns
SELECT s.id, coalesce((SELECT max(t.id) FROM turns t WHERE t.session = s.id), 0)
FROM sessions s ORDER BY s.updated DESC, s.id DESC LIMIT :most

-- name: put_last_request
INSERT INTO sketches (session, at, count, compaction, tokens, reported, context, threshold, requests, client)
VALUES (:session, :at, :count, :compaction, :tokens, :reported, :window, :threshold, 1, :client)
ON CONFLICT (session) DO UPDATE
SET at = excluded.at, count = excluded.count, compaction = excluded.compaction, tokens = excluded.tokens,
    reported = excluded.reported, context = excluded.context, threshold = excluded.threshold,
    requests = sketches.requests + 1, client = excluded.client

-- name: last_request
SELECT session, at, count, compaction, tokens, reported, context, threshold, requests, client
FROM sketches WHERE session = :session

-- name: last_requests
SELECT session, at, count, compaction, tokens, reported, context, threshold, requests, client
FROM sketches ORDER BY at DESC LIMIT :most

-- name: clients
SELECT session, client FROM sketches WHERE client <> '' ORDER BY at DESC LIMIT :most

-- name: rename_session
UPDATE sessions SET name = :name WHERE id = :id

-- name: give_turns
UPDATE turns SET session = :target WHERE session = :source

-- name: touch_session
UPDATE sessions SET updated = {now}, model = CASE WHEN count = 0 THEN coalesce(:model, model) ELSE model END
WHERE id = :id

-- name: forget_conversations
DELETE FROM sessions WHERE count = 0 AND compactions = 0 AND id IN (
    SELECT s.id FROM sessions s JOIN sketches k ON k.session = s.id WHERE s.count = 0
    ORDER BY s.updated DESC, s.id DESC LIMIT 1000000000 OFFSET :most)

-- name: add_belonging
INSERT INTO belongings (name, ends) VALUES (:name, :ends) ON CONFLICT (name) DO NOTHING

-- name: has_belonging
SELECT 1 FROM belongings WHERE name = :name

-- name: end_belongings
DELETE FROM belongings WHERE ends < :now

-- name: word_segments
SELECT start, stop, version FROM word_segments WHERE session = :session ORDER BY start

-- name: add_word_segment
INSERT INTO word_segments (session, start, stop, version) VALUES (:session, :start, :stop, :version)

-- name: add_word_block
INSERT INTO word_blocks (session, start, word, data) VALUES (:session, :start, :word, :data)

-- name: blocks_of_segment
SELECT data FROM word_blocks WHERE session = :session AND start = :start ORDER BY word

-- name: delete_word_segment
DELETE FROM word_segments WHERE session = :session AND start = :start

-- name: delete_word_blocks_of
DELETE FROM word_blocks WHERE session = :session AND start = :start

-- name: copy_word_segment
INSERT INTO word_segments (session, start, stop, version)
SELECT :target, start, stop, version FROM word_segments WHERE session = :source AND start = :start

-- name: copy_word_blocks
INSERT INTO word_blocks (session, start, word, data)
SELECT :target, start, word, data FROM word_blocks WHERE session = :source AND start = :start

-- name: age_words
UPDATE word_segments SET version = 0

-- name: drop_broken_segments
DELETE FROM word_segments WHERE session IN (
    SELECT s.id FROM sessions s WHERE s.count <>
        (SELECT coalesce(sum(w.stop - w.start), 0) FROM word_segments w WHERE w.session = s.id))

-- name: drop_lost_blocks
DELETE FROM word_blocks WHERE NOT EXISTS
    (SELECT 1 FROM word_segments w WHERE w.session = word_blocks.session AND w.start = word_blocks.start)

-- name: unmark_bodies
UPDATE bodies SET indexed = 0 WHERE indexed <> 0

-- name: words_to_renew
SELECT (SELECT coalesce(sum(count), 0) FROM sessions)
     - (SELECT coalesce(sum(stop - start), 0) FROM word_segments WHERE version = :version)

-- name: stale_words
SELECT count(*) FROM word_segments WHERE version <> :words

-- name: orphan_words
SELECT (SELECT count(*) FROM sessions s WHERE s.count <>
           (SELECT coalesce(sum(w.stop - w.start), 0) FROM word_segments w WHERE w.session = s.id))
     + (SELECT count(*) FROM word_segments w WHERE NOT EXISTS
           (SELECT 1 FROM word_blocks b WHERE b.session = w.session AND b.start = w.start AND b.word = ''))
     + (SELECT count(*) FROM word_blocks b WHERE NOT EXISTS
           (SELECT 1 FROM word_segments w WHERE w.session = b.session AND w.start = b.start))

-- name: matching_positions
SELECT position FROM messages
WHERE session = :session AND (:role < 0 OR role = :role) AND at >= :since AND at < :until

-- name: put_window
INSERT INTO learned_windows (name, owner, upstream, model, beta, named, refused, fitted, ends)
VALUES (:name, :owner, :upstream, :model, :beta, :named, :refused, :fitted, :ends)
ON CONFLICT (name) DO UPDATE
SET named = excluded.named, refused = excluded.refused, fitted = excluded.fitted, ends = excluded.ends

-- name: windows
SELECT name, owner, upstream, model, beta, named, refused, fitted, ends
FROM learned_windows WHERE ends > :now ORDER BY ends DESC, name LIMIT :most

-- name: forget_window
DELETE FROM learned_windows WHERE name = :name

-- name: end_windows
DELETE FROM learned_windows WHERE ends <= :now

-- name: forget_windows
DELETE FROM learned_windows
