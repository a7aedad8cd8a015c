"""A tool loop with the openai client: stored responses, streamed."""

import json

from documented import client

TOOL = {
    "type": "function",
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    "strict": False,
}
given, previous = "Add 1 and 2, 3 and 4, then both sums.", None
for _ in range(5):
    asked = {} if previous is None else {"previous_response_id": previous}
    with client.responses.stream(model="auto", input=given, tools=[TOOL], **asked) as stream:
        for _event in stream:
            pass
        response = stream.get_final_response()
    calls = [item for item in response.output if item.type == "function_call"]
    if not calls:
        print(response.output_text)
        break
    previous, given = response.id, []
    for call in calls:
        numbers = json.loads(call.arguments)
        result = str(numbers["a"] + numbers["b"])
        given.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
