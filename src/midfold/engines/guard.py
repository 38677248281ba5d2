"""Call an engine safely: the conversation stays whole whatever a plugin does.

If `should_compress` fails, the prompt size decides. If `compress` raises or returns an illegal conversation, nothing is
folded. A plugin's omissions of the user's words are reported, never rewritten. All of this is in the receipt, failures
as `ENGINE_FAILED`. Errors of the built-in engines are raised.
"""

from __future__ import annotations

from typing import cast

import msgspec

from midfold.compaction.budget import Pressure
from midfold.compaction.context import CompactionContext
from midfold.compaction.finish import fail, leave, make_outcome, make_receipt
from midfold.compaction.receipt import SummaryFacts, account
from midfold.compaction.redact import redact
from midfold.compaction.request import CompactionRequest, Flow, Outcome, SummaryAnswer, SummaryRequest
from midfold.decide import Decision, Situation, paused_words
from midfold.engines.compressor import Compressor, Noop
from midfold.engines.contract import ContextEngine
from midfold.errors import MidfoldError, PluginError
from midfold.transcript.laws import violations
from midfold.transcript.message import Message

ENGINE_FAILED = "CONTEXT ENGINE FAILED"
BUILT_IN = (Compressor, Noop)
MAX_REASON_CHARACTERS = 300


def ask_engine(engine: ContextEngine, request: CompactionRequest, situation: Situation) -> Situation:
    """Return the situation with the engine's pressure, or with its failure."""
    if type(engine) in BUILT_IN:
        return msgspec.structs.replace(situation, pressure=engine.should_compress(request))
    try:
        pressure = engine.should_compress(request)
        if not isinstance(pressure, Pressure):
            raise PluginError(_type_problem("should_compress", pressure, "a Pressure"))
    except Exception as error:  # noqa: BLE001 - a plugin may raise anything; the size decides instead
        fault = f"{_failure_text(engine, error)}. The prompt size decides when to compact"
        return msgspec.structs.replace(situation, fault=fault)
    return msgspec.structs.replace(situation, pressure=pressure)


def carry_out(engine: ContextEngine, request: CompactionRequest, decision: Decision) -> Flow:
    """Carry out the decision: run the engine's compaction, or return a receipt that says why there is none."""
    if not decision.fold:
        return _decline(CompactionContext(request), decision)
    applied = decision.apply(request)
    if type(engine) in BUILT_IN:
        outcome = yield from engine.compress(applied)
        return decision.settle(outcome.with_recovery(request.messages))
    try:
        outcome = _report_omissions(engine, request, (yield from _compress(engine, applied)))
        return decision.settle(outcome.with_recovery(request.messages))
    except PluginError as error:
        reason = _failure_text(engine, error)
    except MidfoldError:
        raise
    except Exception as error:  # noqa: BLE001 - a plugin may raise anything; the conversation stays as it was
        reason = _failure_text(engine, error)
    return decision.settle(
        fail(CompactionContext(request), f"{reason}. Nothing was compacted; every message is unchanged")
    )


def _report_omissions(engine: ContextEngine, request: CompactionRequest, outcome: Outcome) -> Outcome:
    """Return the outcome of a plugin engine; its receipt lists the user's rules and tasks missing from the view.

    A subclass of the built-in engine has already listed them.
    """
    if isinstance(engine, Compressor) or not outcome.changed:
        return outcome
    job = CompactionContext(request)
    missing = job.words.missing_from(outcome.messages)
    if not missing:
        return outcome
    notice = (
        f'Engine "{engine.name}" omitted rules, decisions or tasks of {len(missing):,} user message(s); '
        "see omitted_words for their handles."
    )
    receipt = msgspec.structs.replace(
        outcome.receipt, omitted_words=missing, notices=(*outcome.receipt.notices, notice)
    )
    return msgspec.structs.replace(outcome, receipt=receipt)


def _decline(job: CompactionContext, decision: Decision) -> Outcome:
    """Return the outcome of a decision not to compact; a cooldown reports the failure that started it."""
    if not decision.pause:
        return decision.settle(leave(job, decision.reason))
    kind = decision.failure
    facts = account(kind, kept=True, left=decision.pause)._asdict()
    job.notices.append(paused_words(kind, decision.pause))
    receipt = make_receipt(job, "aborted", decision.reason, summary=SummaryFacts(failure=kind, **facts))
    return decision.settle(make_outcome(job, job.messages, receipt, job.request.state))


def _compress(engine: ContextEngine, request: CompactionRequest) -> Flow:
    flow = engine.compress(request)
    answer: SummaryAnswer | None = None
    if not hasattr(flow, "send"):
        raise PluginError(_type_problem("compress", flow, "a generator"))
    while True:
        try:
            ask = next(flow) if answer is None else flow.send(answer)
        except StopIteration as stop:
            return _legal(stop.value, request)
        if not isinstance(ask, SummaryRequest):
            raise PluginError(f"compress yielded a value of type {type(ask).__name__}, expected a SummaryRequest")
        answer = yield ask


def _legal(outcome: object, request: CompactionRequest) -> Outcome:
    if not isinstance(outcome, Outcome):
        raise PluginError(_type_problem("compress", outcome, "an Outcome"))
    messages, given = outcome.messages, cast("object", outcome.messages)
    if not isinstance(given, tuple) or not all(isinstance(message, Message) for message in given):
        raise PluginError("compress returned messages that are not a tuple of Message")
    if request.messages and not messages:
        raise PluginError("compress returned no messages")
    if outcome.changed and (found := violations(messages)) and not violations(request.messages):
        raise PluginError(f"compress returned messages that providers reject: {found[0]}")
    return outcome


def _type_problem(method: str, value: object, what: str) -> str:
    return f"{method} returned a value of type {type(value).__name__}, expected {what}"


def _failure_text(engine: ContextEngine, error: Exception) -> str:
    reason = redact(str(error))[:MAX_REASON_CHARACTERS] if isinstance(error, PluginError) else type(error).__name__
    return f'{ENGINE_FAILED}: "{engine.name}": {reason}'
