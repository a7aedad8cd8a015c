"""Pairs of sentences with the same meaning, written by hand."""

PARAPHRASES = [
    ("How do I reset my password?", "I forgot my login secret; what should I do?"),
    ("The cat sleeps on the sofa.", "A kitten is napping on the couch."),
    ("What is the capital of France?", "Which city is the seat of the French government?"),
    ("The train was late because of snow.", "Heavy snowfall delayed the railway service."),
    ("She bought a new car last week.", "Seven days ago she purchased an automobile."),
    ("Sort a list of numbers in Python.", "Write Python code that puts integers in order."),
    ("The soup needs more salt.", "This broth is not seasoned enough."),
    ("Shares fell after the company's report.", "The firm's stock dropped when it announced its results."),
    ("My back hurts when I sit all day.", "Long hours in a chair give me spinal pain."),
    ("Plants need sunlight and water to grow.", "Without light and moisture vegetation cannot thrive."),
    ("The team won the final by two goals.", "They became champions, scoring twice more than their rivals."),
    ("How far is the moon from the earth?", "What is the distance between our planet and its satellite?"),
    ("The court found him guilty of theft.", "A judge convicted the man of stealing."),
    ("Turn down the music, please.", "Could you lower the volume of that song?"),
    ("Vaccines protect children from measles.", "Immunisation keeps young people safe from an infectious disease."),
    ("He plays the violin in an orchestra.", "The musician performs on a string instrument with an ensemble."),
    ("The hotel room was dirty and loud.", "Our accommodation was noisy and had not been cleaned."),
    ("Translate this sentence into Spanish.", "Put the following words into the language of Madrid."),
    ("The volcano erupted at dawn.", "Lava burst out of the mountain early in the morning."),
    ("Cancel my subscription immediately.", "I want to stop paying for this service right now."),
]
