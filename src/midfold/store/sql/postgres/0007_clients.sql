-- The program whose conversation it is: what its requests say of themselves, a name and a version.
ALTER TABLE sketches ADD COLUMN client text NOT NULL DEFAULT '';
