"""Written steps of small calculations: what an adapter learns to write before it answers."""


def added(a: int, b: int) -> str:
    """The sum of two whole numbers, digit by digit from the right."""
    if a < 10 and b < 10:
        return f"{a} + {b} = {a + b}."
    lines, carry = [], 0
    for place in range(max(len(str(a)), len(str(b)))):
        x, y = a // 10**place % 10, b // 10**place % 10
        total = x + y + carry
        carried = f" + {carry}" if carry else ""
        carry = total // 10
        lines.append(f"{x} + {y}{carried} = {total}{f', {total % 10} carry 1' if carry else ''}.")
    return f"{a} + {b}: {' '.join(lines)} {a} + {b} = {a + b}."


def taken(a: int, b: int) -> str:
    """The difference of two whole numbers, a at least b, digit by digit from the right."""
    if a < 20 and b < 10:
        return f"{a} - {b} = {a - b}."
    lines, borrowed = [], 0
    for place in range(len(str(a))):
        x, y = a // 10**place % 10, b // 10**place % 10
        less = f" - {borrowed}" if borrowed else ""
        under = x < y + borrowed
        shown = f"1{x}" if under else str(x)
        lines.append(f"{shown} - {y}{less} = {int(shown) - y - borrowed}{', borrow 1' if under else ''}.")
        borrowed = int(under)
    return f"{a} - {b}: {' '.join(lines)} {a} - {b} = {a - b}."


def multiplied(a: int, b: int) -> str:
    """The product of a whole number and a digit or a power of ten, by the places of the first."""
    if a < 10 or b in (10, 100, 1000):
        return f"{a} x {b} = {a * b}."
    parts = [int(digit) * 10**place for place, digit in enumerate(reversed(str(a))) if digit != "0"]
    products = [f"{part} x {b} = {part * b}." for part in reversed(parts)]
    if len(parts) == 1:
        return " ".join(products)
    sums, total = [], parts[-1] * b
    for part in reversed(parts[:-1]):
        sums.append(f"{total} + {part * b} = {total + part * b}.")
        total += part * b
    return f"{' '.join(products)} {' '.join(sums)} {a} x {b} = {a * b}."


def compared(a: int, b: int) -> str:
    """Which of two different whole numbers is larger, by their lengths or their first digits that differ."""
    first, second = str(a), str(b)
    large = max(a, b)
    if len(first) != len(second):
        return f"{a} and {b}: {len(first)} and {len(second)} digits. {large} is larger."
    seen = []
    for x, y in zip(first, second, strict=True):
        seen.append(f"{x} {'=' if x == y else '>' if x > y else '<'} {y}")
        if x != y:
            break
    return f"{a} and {b}: {', '.join(seen)}. {large} is larger."
