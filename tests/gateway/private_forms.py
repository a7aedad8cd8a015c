"""Personal and secret data in the forms and in the places in which a request may have it. All of it is made up."""

import json
from typing import Any

MAIL = "ada@example.com"
CARD = "4111111111111111"
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
HELLO = {"role": "user", "content": "What is 3 + 4?"}
_BODY = "MIIEowIBAAKCAQEAx4UbaDzY5xjW6hc9jwN0mX33XpTDVW9WZ8TFAqqVZ6mK5yZ0"
_RANDOM = "x7Kq2Lw9Zp4Rt8Vb3Nm6Yc1Hd5Jf0Gs"

TEXTS: dict[str, str] = {
    # Addresses.
    "email": f"Write to {MAIL}, please",
    "email in mailto": "mailto:ada%40example.com?subject=x",
    "email with entity": "ada&#64;example.com",
    "email with hexadecimal entity": "ada&#x40;example.com",
    "email with named entities": "ada&commat;example&period;com",
    "email with escape of JSON": "ada\\u0040example.com",
    "email with escape in escape": "ada\\\\u0040example.com",
    "email with escape of JavaScript": "ada\\x40example.com",
    "email with entity in percent": "ada%26%2364%3Bexample.com",
    "email in full width": "ａｄａ＠ｅｘａｍｐｌｅ．ｃｏｍ",
    "email with zero-width space": "ada\u200b@\u200bexample.com",
    "email with soft hyphen": "ada@exam\u00adple.com",
    "email with word joiner": "ada\u2060@example.com",
    "email with byte order mark": "ada@example\ufeff.com",
    "email with ideographic stop": "ada@example。com",
    "email with dots and plus": "ada.lovelace+x@mail.example.co.uk",
    "email in another script": "müller@exämple.de",
    "email in punycode": "ada@example.xn--p1ai",
    "email at an address": "ada@[192.168.0.1]",
    "email in a query": "https://example.com/?to=ada%40example.com&x=1",
    "email in tags": "".join(chr(0xE0000 + ord(character)) for character in MAIL) + " hidden",
    "email for people": "ada [at] example [dot] com",
    # Cards.
    "card": "card 4111 1111 1111 1111 12/27, cvv 123",
    "card in one": f"number {CARD}.",
    "card with dashes": "5555-5555-5555-4444",
    "card with dots": "4111.1111.1111.1111",
    "card with no-break spaces": "4111\u00a01111\u00a01111\u00a01111",
    "card with narrow spaces": "4111\u202f1111\u202f1111\u202f1111",
    "card with en dashes": "4111–1111–1111–1111",
    "card with minus signs": "4111\u22121111\u22121111\u22121111",
    "card with slashes": "4111/1111/1111/1111",
    "card with underscores": "4111_1111_1111_1111",
    "card with middle dots": "4111·1111·1111·1111",
    "card with two spaces": "4111  1111  1111  1111",
    "card with plus of a form": "number=4111+1111+1111+1111",
    "card in full width": "４１１１ １１１１ １１１１ １１１１",
    "card in Arabic digits": "٤١١١ ١١١١ ١١١١ ١١١١",
    "card in Persian digits": "۴۱۱۱۱۱۱۱۱۱۱۱۱۱۱۱",
    "card in Devanagari digits": "४१११११११११११११११",
    "card in mathematical digits": "𝟒𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏",
    "card in percent": "4111%201111%201111%201111",
    "card in entities": "4111&nbsp;1111&nbsp;1111&nbsp;1111",
    "card with zero-width spaces": "4111\u200b1111\u200b1111\u200b1111",
    "card after an escape": "pay:\\n4111111111111111\\n",
    "American Express": "amex 378282246310005",
    "American Express in groups": "3782 822463 10005",
    "Mastercard of the new series": "2223003122003222",
    "Diners Club": "3056 930902 5904",
    "card of 19 digits": "6304 0000 0000 0000 000",
    "card digit by digit": "it is 4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1",
    # Accounts.
    "IBAN": "to DE89 3704 0044 0532 0130 00 EUR 500",
    "IBAN in one": "DE89370400440532013000",
    "IBAN in small letters": "gb82west12345698765432",
    "IBAN with no-break spaces": "DE89\u00a03704\u00a00044\u00a00532\u00a00130\u00a000",
    "IBAN with dashes": "DE89-3704-0044-0532-0130-00",
    "IBAN with dots": "DE89.3704.0044.0532.0130.00",
    "IBAN in full width": "ＤＥ８９ ３７０４ ００４４ ０５３２ ０１３０ ００",
    "IBAN with zero-width joiner": "DE89\u200d3704\u200d0044\u200d0532\u200d0130\u200d00",
    "IBAN of Malta": "MT84 MALT 0110 0001 2345 MTLC AST0 01S",
    "IBAN in percent": "DE89%203704%200044%200532%200130%2000",
    # Phones.
    "phone abroad": "call +49 (30) 1234-5678 now",
    "phone with 00": "or 0049 30 12345678",
    "phone with no-break spaces": "+49\u00a030\u00a012345678",
    "phone in full width": "＋４９ ３０ １２３４５６７８",
    "phone in America": "in the US (212) 555-0187",
    "phone in America with 1": "1-212-555-0187",
    "phone in Germany": "030 12345678",
    "phone in Germany with slash": "0171/1234567",
    "phone in Britain": "020 7946 0958",
    "phone in France": "06 12 34 56 78",
    "phone in France with dots": "01.42.68.53.17",
    "phone in Australia": "0412 345 678",
    "phone in Japan": "03-1234-5678",
    "phone in Spain": "mi teléfono: 612 345 678",
    "phone in India": "mobile number 98765 43210",
    "phone in China": "手机 13812345678",
    "phone in China in groups": "138 0013 8000",
    "phone in Poland": "512 345 678",
    "phone in Russia": "8 (495) 123-45-67",
    "phone in Brazil": "(11) 91234-5678",
    "phone in Britain in one": "07911123456",
    "phone in one": "Tel. 03012345678",
    "phone in brackets": "(030) 12345678",
    # Keys and tokens.
    "key of OpenAI": "OPENAI_API_KEY=sk-proj-abcdefghij0123456789",
    "key of Anthropic": f"sk-ant-api03-{_RANDOM}",
    "key of ours": f"sk-aio-{_RANDOM}{_RANDOM[:11]}",
    "key id of AWS": "key AKIAIOSFODNN7EXAMPLE",
    "session of AWS": "ASIAIOSFODNN7EXAMPLE",
    "secret of AWS": "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "secret of AWS in JSON": '{"SecretAccessKey": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}',
    "token of Slack": "xox" + "b-123456789012-1234567890123-AbCdEfGhIjKlMnOpQrStUvWx",
    "app token of Slack": "xapp-" + "1-A012345-0123456789-abcdef0123456789",
    "webhook of Slack": "https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX",
    "key of Google": "AIza" + "SyA1234567890abcdefghijklmnopqrstuv",
    "token of Google": "ya29." + "a0AfH6SMBx1234567890abcdefghij",
    "secret of Google": "GOCSPX-" + "abcdefghij0123456789ABCDEFGH",
    "key of Stripe": "sk_" + "live_4eC39HqLyjWDarjtT1zdp7dc",
    "test key of Stripe": "sk_" + "test_4eC39HqLyjWDarjtT1zdp7dc",
    "restricted key of Stripe": "rk_" + "live_4eC39HqLyjWDarjtT1zdp7dc",
    "secret of a webhook": "whsec_" + "5WbX5kEWLlfzsGNjH64I8lOOqUB6e8FH",
    "token of GitHub": "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "token of GitLab": f"glpat-{_RANDOM[:20]}",
    "token of Hugging Face": f"hf_{_RANDOM}{_RANDOM[:4]}",
    "bearer token": f"Authorization: Bearer {_RANDOM}",
    "bearer token in JSON": f'{{"authorization":"bearer {_RANDOM}"}}',
    "basic credentials": "Authorization: Basic YWRhOnMzY3JldC1wYXNzd29yZA==",
    "key by its name": f"x-api-key: {_RANDOM}",
    "password in an address": "postgres://ada:s3cret-word@db.example.com/main",
    "JSON web token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    "key with zero-width spaces": "AKIA\u200bIOSFODNN7\u200bEXAMPLE",
    "key in percent": "key=sk%2Dproj%2Dabcdefghij0123456789",
    # Private keys.
    "private key": "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl",
    "private key without its first dashes": f"BEGIN RSA PRIVATE KEY-----\n{_BODY}",
    "private key without its first line": f"{_BODY}\n-----END RSA PRIVATE KEY-----",
    "private key without its lines": _BODY,
    "private key with no-break spaces": "-----BEGIN\u00a0PRIVATE\u00a0KEY-----",
    "private key with en dashes": "–––––BEGIN EC PRIVATE KEY–––––",
    "private key in JSON": f"-----BEGIN PRIVATE KEY-----\\n{_BODY}",
    # National identity numbers.
    "CPF": "CPF 529.982.247-25",
    "NIR": "NIR 1 85 05 78 006 084 91",
    "IdNr": "IdNr 86 095 742 719",
    "codice fiscale": "rssmra85t10a562s",
    "PESEL": "PESEL 44051401359",
    "DNI": "DNI 12345678Z",
    "AHV": "AHV 756.9217.0769.85",
    "SSN": "SSN 123-45-6789",
    "SSN with spaces": "123 45 6789",
    "SSN with no-break hyphens": "SSN 123\u201145\u20116789",
    "CPF in full width": "ＣＰＦ ５２９．９８２．２４７－２５",
    # Forms that were once missed.
    "password in an address without a user": "redis://:s3cr3t@db.example.com:6379/0",
    "password with special characters in an address": "postgres://ada:p#ss%2Fw0rd@db/main",
    "password with an ampersand in an address": "amqp://svc:Tr0ub4dor&3@mq.local/vh",
    "password in an address of MongoDB": "mongodb+srv://ada:hunter2@cluster0.mongodb.net",
    "password before an IPv6 address": "https://ada:hunter2@[::1]:8443/x",
    "password of a setting": "password=hunter2",
    "password after a colon": "Password: Sommer2024!",
    "password in German": "Passwort: Sommer2024!",
    "quoted password": "db_passwd = 'k9$fooBar'",
    "password of an environment": "PWD=Xk29mnop;",
    "password in JSON": '{"password": "Tr0ub4dor&3"}',
    "password in YAML": "password: 'C0rrecthorse'",
    "password in a German sentence": "Mein Kennwort ist Blau42!",
    "password in Spanish": "contraseña: Verano2024",
    "password in French": "mot de passe : Ete2024!",
    "password in Portuguese": "senha: Verao#2024",
    "password in Polish": "hasło: Lato2024!",
    "password in Russian": "пароль: Leto2024!",
    "password in Chinese": "密码：Xia2024tian",
    "password in a Chinese sentence": "密码是 Xia2024tian",
    "password in Japanese": "パスワード：natsu2024",
    "password in Korean": "비밀번호: yeoreum2024",
    "password in a sentence": "my password is hunter2",
    "password of a connection": "Server=db;User Id=sa;Password=Str0ngPass;",
    "password in a variable": "DB_PASSWORD=s3cr3tvalue",
    "password in a query": "https://example.com/login?user=ada&password=hunter2",
    "password on a command line": "mysql -u root --password=hunter2",
    "passphrase": "passphrase: blau-42-kater",
    "passcode": "passcode: 84a7c1",
    "private key of WireGuard": "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\nMTU = 1420",
    "preshared key of WireGuard": "PresharedKey=FpCyhws9cxwWoV4xELtfJvjJN+zQVRPISllRWgeopVE=",
    "private key of WireGuard in JSON": '"private_key": "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk="',
    "SSN without dashes": "SSN: 123456789",
    "social security number without dashes": "social security number 123456789",
    "social security number in a sentence": "My social security no. is 123456789.",
    "SSN as a field": "ssn=123456789",
    "SSN after a number sign": "SSN# 123456789",
    "mobile phone in Spain in pairs": "llámame al 612 34 56 78",
    "phone in Madrid": "91 234 56 78",
    "phone in Spain after three digits": "912 34 56 78",
    "phone in Spain with dots": "612.34.56.78",
    "phone in Spain with dashes": "612-34-56-78",
    "phone in Barcelona": "934 567 890",
    "card behind a word": "card4111111111111111",
    "card between letters": "cc:4111111111111111x",
    "card in groups behind a word": "Karte4111 1111 1111 1111",
    "card before a word": "4111111111111111exp12/27",
    "card in a Chinese sentence": "卡号4111111111111111有效",
    "email with blanks at its sign": "ada @ example.com",
    "email with blanks": "ada @ example . com",
    "email with a blank after its sign": "ada@ example.com",
    "email with a blank before its sign": "ada @example.com",
    "email with (at)": "ada(at)example.com",
    "email with (at) and (dot)": "ada (at) example (dot) com",
    "email in words": "ada at example dot com",
    "email in capital words": "ada AT example DOT com",
    "email in braces": "ada{at}example{dot}com",
    "email for German people": "ada (ät) example punkt de",
    "email with underscores": "ada_at_example_dot_com",
    "email in quoted-printable": "ada=40example.com",
    "email in quoted-printable with its stop": "ada=40example=2Ecom",
    "card in quoted-printable": "4111=201111=201111=201111",
    "card over a soft line break": "card 4111 1111 =\n1111 1111",
    "email over a soft line break": "ada@exam=\nple.com",
    "email in a regular expression": "^ada@example\\.com$",
    "escaped email": "ada\\@example\\.com",
    "card in a regular expression": "4111\\-1111\\-1111\\-1111",
    "IBAN in a regular expression": "DE89\\ 3704\\ 0044\\ 0532\\ 0130\\ 00",
    "identity number of China": "身份证 11010519491231002X",
    "CURP": "CURP BOXW310820HNERXN09",
    "HETU": "131052-308T",
}
"""By name: a text with one thing in it that a rule finds."""

Body = dict[str, Any]


def _function(name: str = "send", **more: Any) -> Body:
    return {"name": name, "description": "d", "parameters": {"type": "object", "properties": {}}} | more


def _tool(**more: Any) -> Body:
    return {"messages": [HELLO], "tools": [{"type": "function", "function": _function(**more)}]}


def _schema(schema: Body) -> Body:
    return _tool(parameters={"type": "object"} | schema)


def _properties(properties: Body) -> Body:
    return {"type": "object", "properties": properties}


def _called(call_id: str = "c1", name: str = "send", arguments: str = "{}") -> Body:
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    turns = [HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}]
    return {"messages": [*turns, {"role": "tool", "tool_call_id": call_id, "content": "done"}]}


def _form(schema: Body) -> Body:
    return {
        "messages": [HELLO],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
    }


def _parts(*texts: str) -> Body:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": text} for text in texts]}]}


def _turns(*texts: str) -> Body:
    turns: list[Body] = []
    for text in texts:
        turns += [{"role": "user", "content": text}, {"role": "assistant", "content": "Go on."}]
    return {"messages": turns[:-1]}


def _items(*items: Body) -> Body:
    return {"input": [{"type": "message", "role": "user", "content": "What is 3 + 4?"}, *items]}


def _call_item(call_id: str = "c1", name: str = "send", arguments: str = "{}") -> Body:
    return _items(
        {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments},
        {"type": "function_call_output", "call_id": call_id, "output": "done"},
    )


def _blocks(call_id: str = "c1", name: str = "send", given: Body | None = None) -> Body:
    return {
        "max_tokens": 8,
        "messages": [
            HELLO,
            {"role": "assistant", "content": [{"type": "tool_use", "id": call_id, "name": name, "input": given or {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": "done"}]},
        ],
    }


def _anthropic_tool(**more: Any) -> Body:
    tool = {"name": "send", "description": "d", "input_schema": {"type": "object", "properties": {}}} | more
    return {"max_tokens": 8, "messages": [HELLO], "tools": [tool]}


NUMBER = int(CARD)
PLACES: dict[str, tuple[str, Body]] = {
    "arguments of a call": (CHAT, _called(arguments=json.dumps({"to": MAIL}))),
    "escape in arguments": (CHAT, _called(arguments='{"to": "ada\\u0040example.com"}')),
    "escape in JSON in arguments": (CHAT, _called(arguments=json.dumps({"body": '{"to": "ada\\u0040example.com"}'}))),
    "number in arguments": (CHAT, _called(arguments=f'{{"card": {NUMBER}}}')),
    "name in arguments": (CHAT, _called(arguments=json.dumps({MAIL: 1}))),
    "id of a call": (CHAT, _called(call_id=f"call_{MAIL}")),
    "number as id of a call": (CHAT, _called(call_id=CARD)),
    "name of a call": (CHAT, _called(name=f"pay-{CARD}")),
    "description of a tool": (CHAT, _tool(description=f"Mail to {MAIL}")),
    "name of a tool": (CHAT, _tool(name="AKIAIOSFODNN7EXAMPLE")),
    "name of a property": (CHAT, _schema({"properties": {MAIL: {"type": "string"}}})),
    "name in $defs": (CHAT, _schema({"$defs": {MAIL: {"type": "string"}}})),
    "value of an enum": (CHAT, _schema({"properties": {"to": {"enum": ["x", MAIL]}}})),
    "number of an enum": (CHAT, _schema({"properties": {"to": {"enum": [1, NUMBER]}}})),
    "default": (CHAT, _schema({"properties": {"to": {"type": "string", "default": MAIL}}})),
    "number as default": (CHAT, _schema({"properties": {"to": {"type": "integer", "default": NUMBER}}})),
    "const": (CHAT, _schema({"properties": {"to": {"const": MAIL}}})),
    "number as const": (CHAT, _schema({"properties": {"to": {"const": NUMBER}}})),
    "examples": (CHAT, _schema({"properties": {"to": {"type": "string", "examples": [MAIL]}}})),
    "pattern of a schema": (CHAT, _schema({"properties": {"to": {"pattern": "^ada@example\\.com$"}}})),
    "required name": (CHAT, _schema({"properties": {"a": {}}, "required": [MAIL]})),
    "bound of a schema": (CHAT, _schema({"properties": {"a": {"type": "integer", "maximum": NUMBER}}})),
    "property of an answer's schema": (CHAT, _form({"type": "object", "properties": {MAIL: {"type": "string"}}})),
    "const of an answer's schema": (CHAT, _form({"type": "object", "properties": {"a": {"const": NUMBER}}})),
    "value of metadata": (CHAT, {"messages": [HELLO], "metadata": {"who": MAIL}}),
    "name of metadata": (CHAT, {"messages": [HELLO], "metadata": {MAIL: "x"}}),
    "user": (CHAT, {"messages": [HELLO], "user": MAIL}),
    "key of a provider's cache": (CHAT, {"messages": [HELLO], "prompt_cache_key": MAIL}),
    "seed": (CHAT, {"messages": [HELLO], "seed": NUMBER}),
    "stop": (CHAT, {"messages": [HELLO], "stop": [MAIL]}),
    "name of a turn": (CHAT, {"messages": [HELLO | {"name": "AKIAIOSFODNN7EXAMPLE"}]}),
    "system turn": (CHAT, {"messages": [{"role": "system", "content": MAIL}, HELLO]}),
    "earlier answer": (CHAT, {"messages": [HELLO, {"role": "assistant", "content": MAIL}, HELLO]}),
    "thoughts": (CHAT, {"messages": [HELLO, {"role": "assistant", "content": "7", "reasoning_content": MAIL}, HELLO]}),
    "variable of a template": (CHAT, {"messages": [HELLO], "chat_template_kwargs": {"to": MAIL}}),
    "name of a variable of a template": (CHAT, {"messages": [HELLO], "chat_template_kwargs": {MAIL: 1}}),
    "field of some servers": (CHAT, {"messages": [HELLO], "documents": [{"title": MAIL}]}),
    "card over parts": (CHAT, _parts("card 4111 1111", "1111 1111 thanks")),
    "card over four parts": (CHAT, _parts("My card:", "4111", "1111", "1111", "1111", "thanks")),
    "email over parts": (CHAT, _parts("Write to ada@", "example.com")),
    "email at its sign": (CHAT, _parts("Write to ada", "@example.com soon")),
    "IBAN over parts": (CHAT, _parts("To DE89 3704 0044", "0532 0130 00 please")),
    "key over parts": (CHAT, _parts("Use sk-proj-abcdef", "ghij0123456789")),
    "card over messages": (CHAT, _turns("4111 1111", "1111 1111")),
    "email over messages": (CHAT, _turns("ada@", "example.com")),
    "prompts": ("/v1/completions", {"prompt": ["Hello", f"to {MAIL}"]}),
    "card over prompts": ("/v1/completions", {"prompt": ["4111 1111", "1111 1111"]}),
    "Responses: input": (RESPONSES, {"input": f"to {MAIL}"}),
    "Responses: instructions": (RESPONSES, {"input": "Hi", "instructions": f"to {MAIL}"}),
    "Responses: arguments": (RESPONSES, _call_item(arguments='{"to": "ada\\u0040example.com"}')),
    "Responses: number in arguments": (RESPONSES, _call_item(arguments=f'{{"card": {NUMBER}}}')),
    "Responses: id of a call": (RESPONSES, _call_item(call_id=f"call_{MAIL}")),
    "Responses: name of a call": (RESPONSES, _call_item(name="AKIAIOSFODNN7EXAMPLE")),
    "Responses: name of metadata": (RESPONSES, {"input": "Hi", "metadata": {MAIL: "x"}}),
    "Responses: user": (RESPONSES, {"input": "Hi", "user": MAIL}),
    "Responses: property": (
        RESPONSES,
        {"input": "Hi", "tools": [{"type": "function"} | _function(parameters=_properties({MAIL: {}}))]},
    ),
    "Responses: number of an enum": (
        RESPONSES,
        {"input": "Hi", "tools": [{"type": "function"} | _function(parameters=_properties({"a": {"enum": [NUMBER]}}))]},
    ),
    "Responses: schema of the answer": (
        RESPONSES,
        {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "n", "schema": _properties({MAIL: {}})}}},
    ),
    "Responses: card over parts": (
        RESPONSES,
        {"input": [{"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "4111 1111"}, {"type": "input_text", "text": "1111 1111"}]}]},
    ),
    "Messages: text": (MESSAGES, {"max_tokens": 8, "messages": [{"role": "user", "content": f"to {MAIL}"}]}),
    "Messages: system": (MESSAGES, {"max_tokens": 8, "system": f"to {MAIL}", "messages": [HELLO]}),
    "Messages: input of a call": (MESSAGES, _blocks(given={"to": MAIL})),
    "Messages: name in a call's input": (MESSAGES, _blocks(given={MAIL: 1})),
    "Messages: number in a call's input": (MESSAGES, _blocks(given={"card": NUMBER})),
    "Messages: id of a call": (MESSAGES, _blocks(call_id="AKIAIOSFODNN7EXAMPLE")),
    "Messages: name of a call": (MESSAGES, _blocks(name="AKIAIOSFODNN7EXAMPLE")),
    "Messages: property": (MESSAGES, _anthropic_tool(input_schema=_properties({MAIL: {}}))),
    "Messages: const": (MESSAGES, _anthropic_tool(input_schema=_properties({"a": {"const": NUMBER}}))),
    "Messages: user of metadata": (MESSAGES, {"max_tokens": 8, "messages": [HELLO], "metadata": {"user_id": MAIL}}),
    "Messages: stop": (MESSAGES, {"max_tokens": 8, "messages": [HELLO], "stop_sequences": [MAIL]}),
    "Messages: document": (MESSAGES, {"max_tokens": 8, "messages": [{"role": "user", "content": [
        {"type": "text", "text": "Sum it up."},
        {"type": "document", "title": MAIL, "source": {"type": "text", "media_type": "text/plain", "data": "x"}}]}]}),
    "Messages: email over blocks": (MESSAGES, {"max_tokens": 8, "messages": [{"role": "user", "content": [
        {"type": "text", "text": "to ada@"}, {"type": "text", "text": "example.com"}]}]}),
    "embeddings": ("/v1/embeddings", {"model": "vectors", "input": ["Hello", f"to {MAIL}"]}),
    "embeddings: user": ("/v1/embeddings", {"model": "vectors", "input": "Hello", "user": MAIL}),
    "embeddings: card over inputs": ("/v1/embeddings", {"model": "vectors", "input": ["4111 1111", "1111 1111"]}),
    "rerank: query": ("/v1/rerank", {"query": f"to {MAIL}", "documents": ["a", "b"]}),
    "rerank: document": ("/v1/rerank", {"query": "x", "documents": ["a", {"text": "b", "from": MAIL}]}),
    "rerank: name in a document": ("/v1/rerank", {"query": "x", "documents": ["a", {"text": "b", MAIL: 1}]}),
    "rerank: further field": ("/v1/rerank", {"query": "x", "documents": ["a"], "note": NUMBER}),
    "moderations": ("/v1/moderations", {"input": ["Hello", f"to {MAIL}"]}),
    "moderations: part": ("/v1/moderations", {"input": [{"type": "text", "text": "card ٤١١١ ١١١١ ١١١١ ١١١١"}]}),
    "speech": ("/v1/audio/speech", {"input": f"Say {CARD}", "voice": "alloy"}),
    "speech: instructions": ("/v1/audio/speech", {"input": "Hello", "voice": "alloy", "instructions": MAIL}),
    "images": ("/v1/images/generations", {"prompt": "A letter to ada&#64;example.com"}),
    "images: user": ("/v1/images/generations", {"prompt": "A letter", "user": MAIL}),
}  # fmt: skip
"""By name: the path and the body of a request with one thing in an odd place."""

OPEN: list[tuple[str, Body]] = [
    (CHAT, {"messages": [HELLO]}),
    # Another beginning than that of a private conversation.
    (CHAT, {"messages": [{"role": "user", "content": "Send it."}, *_called(arguments='{"to": 7}')["messages"][1:]]}),
    (CHAT, _schema({"properties": {"a": {"enum": [400, 401, 403]}}})),
    (CHAT, _parts("What is", "3 + 4?") | {"seed": 42, "metadata": {"team": "x"}}),
    (RESPONSES, {"input": "Hi"}),
    (MESSAGES, {"max_tokens": 8, "messages": [HELLO]}),
    ("/v1/embeddings", {"model": "vectors", "input": ["Hello", "there"]}),
    ("/v1/rerank", {"query": "x", "documents": ["a", {"text": "b"}]}),
    ("/v1/moderations", {"input": "Hello"}),
    ("/v1/audio/speech", {"input": "Hello", "voice": "alloy"}),
    ("/v1/images/generations", {"prompt": "A letter"}),
]
"""Requests with nothing that a rule finds, which leave."""

CATALOG = """
[[embeddings]]
name = "vectors"
url = "{sink}"
model = "vectors"
input_usd_per_million = 0.5

[[targets]]
name = "others"
url = "{sink}"
model = "others"
serves = ["rerank", "moderations", "speech", "images", "transcriptions"]
unit_prices = {{ rerank = 1.0, moderations = 1.0, speech = 1.0, images = 1.0, transcriptions = 1.0 }}

[private]
"""
"""What a catalogue says besides its tiers, so that every path leads to the server `sink`."""


def in_chat(text: str) -> tuple[str, Body]:
    """Return a chat whose last turn is `text`."""
    return CHAT, {"messages": [{"role": "user", "content": text}]}


CASES: dict[str, tuple[str, Body]] = {name: in_chat(text) for name, text in TEXTS.items()} | PLACES
"""All requests with something private, by name."""
