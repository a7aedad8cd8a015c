"""A tool loop with LangChain, streamed."""

from documented import model
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


messages = [HumanMessage("Add 1 and 2, 3 and 4, then both sums.")]
for _ in range(5):
    said = None
    for chunk in model.bind_tools([add]).stream(messages):
        said = chunk if said is None else said + chunk
    messages.append(said)
    if not said.tool_calls:
        print(said.text)
        break
    messages.extend(add.invoke(call) for call in said.tool_calls)
