"""The part of the contract of stores that is about the system prompt and the tools beside the messages."""

from __future__ import annotations

from midfold.store.protocol import Prompt, Store
from midfold.testing.store_base import CHAT, StoreBase, entries

FIRST = Prompt(b'"Be brief."', b'[{"name": "sh",  "x": 1e-7}]')
SECOND = Prompt(b'[{"type":"text","text":"Be kind."}]', FIRST.tools)


class PromptContract(StoreBase):
    def test_what_stands_beside_the_messages_is_kept_byte_for_byte(self, store: Store, other: Store, name: str) -> None:
        store.append(name, entries("a"), dialect=CHAT, prompt=FIRST)
        store.append(name, entries("b"), dialect=CHAT)
        assert other.prompt(self.info(other, name)) == FIRST
        store.sync(name, entries("a", "b"), dialect=CHAT, prompt=FIRST)
        store.sync(name, entries("a", "b"), dialect=CHAT, prompt=SECOND)
        assert other.prompt(self.info(other, name)) == SECOND
        store.append(name, entries("c"), dialect=CHAT, prompt=Prompt())
        assert other.prompt(self.info(other, name)) == Prompt()
        store.append(name, entries("d"), dialect=CHAT, prompt=FIRST)
        assert other.prompt(self.info(other, name)) == FIRST

    def test_branches_and_continuations_begin_with_it(self, store: Store, name: str) -> None:
        store.append(name, entries(*"ab"), dialect=CHAT, prompt=FIRST)
        store.append(name, entries(*"cd"), dialect=CHAT, prompt=SECOND)
        branch = store.sync(name, entries(*"ab", "C"), dialect=CHAT).session
        assert store.prompt(self.info(store, branch)) == FIRST
        store.commit(name, self.lease(store, name), self.fold(store, name, child=f"{name}+1"))
        assert store.prompt(self.info(store, f"{name}+1")) == SECOND
        store.delete(name)
        assert store.prompt(self.info(store, branch)) == FIRST
        assert store.prompt(self.info(store, f"{name}+1")) == SECOND
        for left in (branch, f"{name}+1"):
            store.delete(left)

    def test_prompts_of_failed_appends_and_repeated_ones_change_nothing(self, store: Store, name: str) -> None:
        store.append(name, entries("a"), dialect=CHAT, prompt=FIRST, key="k")
        store.append(name, entries("a"), dialect=CHAT, prompt=SECOND, key="k")
        assert store.prompt(self.info(store, name)) == FIRST
