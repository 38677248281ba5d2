"""What a compaction keeps, measured by the real future of real transcripts. See docs/reference/retention.md.

from midfold.eval import evaluate
result = evaluate(["session.jsonl"], methods={"mine": my_compactor, "midfold": "midfold"})
"""

from midfold.eval.methods import BUILT_IN, Compactor
from midfold.eval.run import Evaluation, evaluate

__all__ = ["BUILT_IN", "Compactor", "Evaluation", "evaluate"]
