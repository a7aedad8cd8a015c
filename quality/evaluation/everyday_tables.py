"""Facts, words and statements that everyday questions ask for, by level from 1 (trivial) to 5 (hard)."""

LEVELS = (1, 2, 3, 4, 5)


def _table(text: str) -> list[list[tuple[str, tuple[str, ...]]]]:
    """By level; a line is `level | question | answer / other answer`."""
    rows: list[list[tuple[str, tuple[str, ...]]]] = [[] for _ in LEVELS]
    for line in text.strip().splitlines():
        level, question, answers = (part.strip() for part in line.split("|"))
        rows[int(level) - 1].append((question, tuple(answer.strip() for answer in answers.split("/"))))
    return rows


FACTS = _table("""
1 | What is the capital of France? | Paris
1 | What colour is grass? | green
1 | How many legs does a cat have? | four / 4
1 | What do we call frozen water? | ice
1 | How many days are in a week? | seven / 7
1 | Which animal says "woof"? | dog / dogs
1 | What is the opposite of hot? | cold
1 | Which star gives us daylight? | sun
1 | What colour is snow? | white
1 | What do cows give us to drink? | milk
1 | What is the capital of Italy? | Rome
1 | How many hours does a day have? | 24 / twenty-four / twenty four
2 | What is the capital of Japan? | Tokyo
2 | Which planet is known as the red planet? | Mars
2 | How many legs does a spider have? | eight / 8
2 | Who wrote Romeo and Juliet? | Shakespeare
2 | What is the largest ocean on Earth? | Pacific
2 | What is the capital of Egypt? | Cairo
2 | In which country is the city of Munich? | Germany
2 | What gas do we need to breathe? | oxygen
2 | What is the plural of "mouse"? | mice
2 | Which month comes after August? | September
2 | What is the capital of Spain? | Madrid
2 | How many sides does a hexagon have? | six / 6
3 | What is the capital of Canada? | Ottawa
3 | What is the chemical symbol of gold? | Au
3 | Who painted the Mona Lisa? | Leonardo / da Vinci
3 | What is the currency of Japan? | yen
3 | In which year did the Second World War end? | 1945
3 | What is the capital of Australia? | Canberra
3 | Which organ pumps blood through the body? | heart
3 | What is the longest river in South America? | Amazon
3 | What is the past tense of "bring"? | brought
3 | How many bones has an adult human body? | 206
3 | What is the capital of Norway? | Oslo
3 | At what temperature in degrees Celsius does water boil at sea level? | 100
4 | What is the capital of Kazakhstan? | Astana / Nur-Sultan
4 | Who wrote the novel "Middlemarch"? | Eliot
4 | Which element has the atomic number 26? | iron
4 | In which year did the Berlin Wall fall? | 1989
4 | What is the capital of New Zealand? | Wellington
4 | Who composed "The Four Seasons"? | Vivaldi
4 | What is the smallest bone in the human body? | stapes / stirrup
4 | Which country has Reykjavik as its capital? | Iceland
4 | What is the chemical symbol of potassium? | K
4 | What is the capital of Morocco? | Rabat
4 | Who discovered penicillin? | Fleming
4 | What is the currency of Poland? | zloty / złoty
5 | What is the capital of Burkina Faso? | Ouagadougou
5 | Which element has the chemical symbol W? | tungsten
5 | In which year was the Treaty of Westphalia signed? | 1648
5 | Who wrote "The Master and Margarita"? | Bulgakov
5 | What is the capital of Bhutan? | Thimphu
5 | Which mathematician proved the incompleteness theorems in 1931? | Gödel / Godel / Goedel
5 | What is the currency of Mongolia? | tugrik / tögrög / togrog
5 | Which moon is the largest in the solar system? | Ganymede
5 | What is the capital of Suriname? | Paramaribo
5 | Which strait separates Tasmania from the Australian mainland? | Bass
5 | Who designed the dome of Florence Cathedral? | Brunelleschi
5 | What is the hardest tissue in the human body? | enamel
""")

WORDS = _table("""
1 | "dog" in Spanish | perro
1 | "cat" in Spanish | gato
1 | "thank you" in French | merci
1 | "hello" in Spanish | hola
1 | "water" in Spanish | agua
1 | "yes" in German | ja
1 | "good morning" in French | bonjour
1 | "house" in Spanish | casa
1 | "goodbye" in Spanish | adiós / adios
1 | "red" in French | rouge
2 | "bread" in French | pain
2 | "water" in German | Wasser
2 | "book" in Spanish | libro
2 | "dog" in French | chien
2 | "house" in German | Haus
2 | "milk" in French | lait
2 | "friend" in Spanish | amigo / amiga
2 | "sun" in French | soleil
2 | "cat" in German | Katze
2 | "night" in Spanish | noche
3 | "window" in Spanish | ventana
3 | "tree" in German | Baum
3 | "apple" in Italian | mela
3 | "school" in French | école / ecole
3 | "key" in Spanish | llave
3 | "rain" in French | pluie
3 | "bird" in German | Vogel
3 | "street" in Spanish | calle
3 | "water" in Italian | acqua
3 | "horse" in French | cheval
4 | "butterfly" in Spanish | mariposa
4 | "pillow" in French | oreiller
4 | "spoon" in German | Löffel / Loffel / Loeffel
4 | "strawberry" in Italian | fragola
4 | "scissors" in Spanish | tijeras
4 | "umbrella" in French | parapluie
4 | "squirrel" in French | écureuil / ecureuil
4 | "candle" in German | Kerze
4 | "bridge" in Italian | ponte
4 | "spider" in Spanish | araña / arana
5 | "hedgehog" in German | Igel
5 | "thimble" in French | dé
5 | "dragonfly" in Spanish | libélula / libelula
5 | "owl" in Dutch | uil
5 | "mushroom" in Polish | grzyb
5 | "window" in Swedish | fönster / fonster
5 | "cherry" in Portuguese | cereja
5 | "squirrel" in Dutch | eekhoorn
5 | "snail" in German | Schnecke
5 | "wheat" in Italian | grano / frumento
""")

TRUTHS = _table("""
1 | Is the sun hot? | yes
1 | Is ice warm? | no
1 | Can dogs bark? | yes
1 | Do fish live in water? | yes
1 | Is a mouse bigger than an elephant? | no
1 | Can a stone swim on its own? | no
1 | Do cars have wheels? | yes
1 | Is milk blue? | no
1 | Do birds have feathers? | yes
1 | Is a chair an animal? | no
2 | Is a tomato a plant? | yes
2 | Is Paris in Italy? | no
2 | Does a triangle have four sides? | no
2 | Is 15 greater than 9? | yes
2 | Do penguins fly? | no
2 | Is Monday followed by Tuesday? | yes
2 | Is gold a metal? | yes
2 | Is the Moon larger than the Earth? | no
2 | Do humans have two kidneys? | yes
2 | Is February the longest month? | no
3 | Is a whale a fish? | no
3 | Is 51 a prime number? | no
3 | Is Sydney the capital of Australia? | no
3 | Does sound travel faster than light? | no
3 | Is a spider an insect? | no
3 | Is Brazil in South America? | yes
3 | Is 144 a square number? | yes
3 | Are bats mammals? | yes
3 | Does the heart have four chambers? | yes
3 | Is Mount Everest in Africa? | no
4 | Is zero an even number? | yes
4 | Is Istanbul the capital of Turkey? | no
4 | Is 91 a prime number? | no
4 | Is a leap year divisible by 400 always a leap year? | yes
4 | Is glass made mainly from sand? | yes
4 | Does Venus have a moon? | no
4 | Is 0.3 greater than 0.25? | yes
4 | Was Mozart born in Salzburg? | yes
4 | Is lead lighter than aluminium? | no
4 | Is the square of -3 negative? | no
5 | Is 221 a prime number? | no
5 | Is the sum of two odd numbers always odd? | no
5 | Is Mercury the hottest planet of the solar system? | no
5 | Is 1/3 plus 1/6 equal to 1/2? | yes
5 | Is every rectangle a square? | no
5 | Is 2 to the power of 10 greater than 1000? | yes
5 | Does water expand when it freezes? | yes
5 | If no cats are dogs, can some dogs be cats? | no
5 | Is the cube root of 27 less than 4? | yes
5 | Is the capital of Brazil Rio de Janeiro? | no
""")
