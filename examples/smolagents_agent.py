"""A smolagents agent whose requests stay inside the window: pip install midfold 'smolagents[openai]'

OPENAI_API_KEY=... python examples/smolagents_agent.py "What is the 100th prime?"
"""

import sys

from smolagents import ChatMessage, MessageRole, OpenAIModel, PythonInterpreterTool, ToolCallingAgent

from midfold import MemoryConversation, Setup


class FoldingModel(OpenAIModel):
    talk, seen = MemoryConversation(Setup(model="gpt-4o")), 0  # one for each agent

    def generate(self, messages, **kwargs):
        roles = {"tool-call": "assistant", "tool-response": "user"}
        new, self.seen = messages[self.seen :], len(messages)
        self.talk.append([{"role": roles.get(one.role, one.role), "content": one.content} for one in new])
        self.talk.compact()
        view = [ChatMessage(MessageRole(one["role"]), one["content"]) for one in self.talk.view().messages]
        return super().generate(view, **kwargs)


agent = ToolCallingAgent([PythonInterpreterTool()], FoldingModel("gpt-4o"), max_steps=200, verbosity_level=0)
sys.stdout.write(f"{agent.run(' '.join(sys.argv[1:]))}\n")
