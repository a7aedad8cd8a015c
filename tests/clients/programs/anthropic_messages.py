"""A tool loop with the anthropic client, streamed."""

from documented import client

TOOL = {
    "name": "add",
    "description": "Adds two numbers.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}
messages = [{"role": "user", "content": "Add 1 and 2, 3 and 4, then both sums."}]
for _ in range(5):
    with client.messages.stream(model="auto", max_tokens=1000, messages=messages, tools=[TOOL]) as stream:
        message = stream.get_final_message()
    messages.append({"role": "assistant", "content": [block.to_dict() for block in message.content]})
    calls = [block for block in message.content if block.type == "tool_use"]
    if not calls:
        print("".join(block.text for block in message.content if block.type == "text"))
        break
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": str(call.input["a"] + call.input["b"])}
        for call in calls
    ]
    messages.append({"role": "user", "content": results})
