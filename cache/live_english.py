"""English questions about the state of the moment, by structure: tense, deixis, whose thing it is, what is counted.

What a question is about shows in closed classes: its question word, its auxiliary, the determiner of its subject and
the ending of its predicate. "Is the bridge closed" asks for the state of one known thing now; "is a bridge safe" and
"do bridges sway" ask for knowledge. The rules read those places and little subject matter: `_QUANTITY` has the nouns
whose values move by nature. A name (a capital inside the sentence) counts as known, not as changing.
"""

from __future__ import annotations

import re

# -- places in a clause

_START = r"(?:^|[.!?;:,] +)(?:(?:so|and|but|ok|okay|hi|hello|hey|please|also|then|well)[ ,]+)*"
_DEF = r"(?:the|this|that|these|those|his|her|its|their|today's|tonight's)"
_OWN = r"(?:my|our|mine|ours)"
_ONE = (
    rf"(?:{_DEF}|{_OWN}|your|all(?: of)? the|any of the|one of the|both|everyone|everybody|"
    r"anyone|anybody|someone|somebody|nobody)"
)
_WHO = r"(?:he|she|they|we|you|i)"
_NAME = r"(?:(?:Mr|Mrs|Ms|Dr)\.? )?[A-Z][\w&'-]*"
# What there is one of, for everybody and at all times, takes "the" without being a thing of this place and moment.
_TIMELESS_ONE = (
    r"(?!(?:earth|solar|sun|moon|sky|universe|world|equator|human|heart|brain|liver|body|"
    r"internet|bible|first|second world|best|"
    r"worst|right|correct|largest|biggest|smallest|highest|tallest|longest|deepest|fastest|"
    r"oldest|average|typical|usual|"
    r"maximum|minimum|most|difference|meaning|definition|purpose|point of|process|year|month|"
    r"week|day|alphabet|rainbow|letter|word|language|name of|word for|opposite|plural|"
    r"square|sum|capital)\b|[A-Z])"
)
_KNOWN = (
    rf"(?:(?:the|this|that|these|those) {_TIMELESS_ONE}|(?:his|her|its|their) |{_OWN} |your "
    r"|all(?: of)? the |any of the |both )"
)
_GENERIC = r"(?!.*\b(?:an?|any kind of|each|every|per|usually|normally|generally|typically|ever|always) )"

_NO_VERB = (
    r"(?:thing|something|anything|nothing|everything|morning|evening|king|ring|string|spring|wing|wedding|during|being|"
    r"interesting|missing link|boring|amazing|willing|meaning|feeling)"
)
_ING = rf"\b(?!{_NO_VERB}\b)[a-z]{{2,}}ing\b"
_END = r"[ ?.!]*$"
# After a predicate: its end, a place, an object; after an adjective in front of a noun there is the noun.
_AFTER = (
    rf"(?:{_END}|[,;]| (?:on|at|in|for|to|with|about|over|by|from|through|near|between|against|"
    r"around|up|down|out|off|right|now|next|there|here|this|that|the|my|our|your|his|her|"
    r"their|today|like|and|or|when|while|if|so|all|us|me|it|because|due|since|yet|enough|"
    r"again)\b)"
)

_NO_PREPOSITION = r"(?!(?:for|of|in|by|to|at|on|from|with|an?)\b)"
_SUBJECT = rf"(?:(?:{_KNOWN.strip()}|people|everyone|{_WHO}|it|{_NAME}) ?(?:{_NO_PREPOSITION}[\w'-]+ ?){{0,2}})"
# States by rule or by making, not by the moment.
_NORM = (
    r"(?:required|allowed|included|needed|supposed|based|called|covered|supported|permitted|"
    r"considered|used|made|spoken|located|situated|found|produced|stored|named|related|intended|"
    r"known|encrypted|insured|shared|eligible|meant|protected|insulated|taxed|guaranteed)"
)

# -- predicates that hold for a while and not for good

_PARTICLE = r"(?:up|down|out|off|on|in|over|back|here|there|away|home|around|online|offline|live|ready|due|done|late)"
_STAGE = (
    rf"(?:{_PARTICLE}|open|shut|closed|free|full|empty|busy|available|awake|asleep|alive|"
    r"well|ill|sick|on time|on air|stuck|"
    rf"broken|healthy|green|red|valid|active|idle|(?!{_NORM}\b)[a-z]+(?:ed|wn))"
)
_QUANTITY = (
    r"(?:prices?|fares?|rates?|temperatures?|levels?|balance|status|state of|score|standings?|"
    r"speed|load|humidity|queue|wait|"
    r"traffic|position|rank(?:ing)?|number of|count of|population|toll|value|yield|record|odds|usage|occupancy|backlog|"
    r"turnout|forecast|mood|"
    r"progress|share price|exchange rate|eta|version|deadline|deal|offer|menu|weather|line-?up|agenda|schedule)"
)
_AFTER_NOUN = (
    rf"(?={_END}|[,;'’]| (?:of|in|for|at|on|to|right|like|now|between|from|per|this|outside|"
    r"today|with|by|after|against|over)\b)"
)
# What is counted up as it happens.
_TALLY = (
    r"(?:points|goals|wins|losses|followers|subscribers|stars|views|likes|users|members|customers|employees|orders|"
    r"visitors|downloads|signups|deaths|cases|votes|medals|bids|comments|errors|alerts|incidents|commits|vacancies)"
)
_UNIT_OF_NATURE = (
    r"(?!.*\b(?:boiling|melting|freezing|absolute|speed of (?:light|sound)|of (?:water|light|"
    r"sound|steel)|in physics)\b)"
)

# Who is so for good: by what was made, by birth, in a story.
_MAKER = (
    r"(?:author|writer|inventor|founder|creator|composer|painter|discoverer|father|mother|"
    r"god|goddess|character|hero|heroine|protagonist|villain|narrator|patron|saint)"
)

_PAST_FORM = (
    r"(?:[a-z]{2,}ed|fell|came|went|got|made|sold|won|lost|left|rose|grew|sank|broke|took|"
    r"ran|drove|flew|spent|paid|sent|voted)"
)

_MADE = (
    r"(?:built|made|designed|directed|played|ruled|conquered|killed|betrayed|proved|created|"
    r"developed|named|coined|explored|defeated|assassinated|voiced|starred|coached)"
)

# (name, words of which the text has one: "^" an auxiliary at a clause's start, "" any; pattern)
RULES: tuple[tuple[str, str, str], ...] = (
    # tense: what has happened, is happening, will happen to a known subject
    ("perfect", "^",
     rf"{_START}(?:has|have|hasn't|haven't) (?!to\b|an? )(?!.*\b(?:ever|always|usually)"
     rf"\b)(?:{_ONE}|{_WHO}|it|there|{_NAME}|[a-z]+)\b"),
    ("perfect", "who what which how why where",
     r"\b(?:who|what|which [^?]*|how (?:far|much|many|long|often)[^?]*|why|where) (?:has|"
     rf"have|hasn't|haven't) (?!to\b|the (?:most|[a-z]+est|[a-z]+er)\b){_GENERIC}(?:{_ONE}(?= "
     r".*(?:ed|en|got|gone|done|left|run|come|become|made|sent|said|paid|spent|won|lost|"
     rf"sold)\b)|{_WHO}|it|been|just|not|{_NAME}|[a-z]+ed|[a-z]+en)\b"),
    ("past", "^",
     rf"{_START}(?:(?:did|didn't|was|were|wasn't) (?:{_KNOWN}|{_WHO} |anyone |anybody "
     rf"|everyone |someone )|did {_NAME} (?!in \d)(?!an? |the [A-Z]))(?!.*\b(?:in|during)"
     r" (?:the [A-Z]|[A-Z]))"),
    ("past", "what when where why how who which",
     r"\b(?:what|when|where|why|how|how (?:much|many|far|long)[^?]*|who|which [^?]*) "
     rf"did (?:{_KNOWN}|i |we |he |she |they |it )(?!.*\b(?:mean|evolve|originate|invent)"
     r")"),
    ("progressive", "^",
     rf"{_START}(?:is|are|isn't|aren't) (?:{_KNOWN}|{_WHO} |it |anyone |anybody |everyone "
     rf"|someone |there |{_NAME} |[a-z]+s )[^?.]*{_ING}(?! (?:to|for|of)? ?an?\b){_GENERIC}"),
    ("progressive", "what who where how which",
     rf"\b(?:what|who|where|how|which [^?]*|how many [^?]*)(?:'s| is| are) (?!an? )(?:{_SUBJECT} "
     rf")?{_ING}{_AFTER}(?!.*\b(?:called|an? ))"),
    ("future", "^", rf"{_START}(?:will|won't) (?:{_KNOWN}|it |there |he |she |they |we |{_NAME} )"),
    ("future", "when where how what who which",
     r"\b(?:when|where|how (?:long|much|many|late)[^?]*|what|who|which [^?]*) (?:will|"
     rf"'ll|can) (?:{_KNOWN}|i (?:expect|get|see|have|pick)|we |it |he |she |they |{_NAME} "
     r")(?!.*\ban? )"),
    ("too late", "it am are still", r"\b(?:is it|am i|are we) (?:too )?(?:late|early|time)\b|\bstill time\b"),
    # the state of one known thing, of a person, of the asker
    ("state", "^",
     rf"{_START}(?:is|are|isn't|aren't) {_KNOWN}(?!.*\b(?:an?|same as|different from|part "
     rf"of|or the|available in) )[^?.]*\b{_STAGE}(?:{_AFTER}|{_END})"),
    # an adjective of its own, not one that is derived and says what a thing is good for or made of
    ("state", "^",
     rf"{_START}(?:is|are|isn't|aren't) {_KNOWN}(?:{_NO_PREPOSITION}[\w'-]+ ){{1,3}}(?!{_NORM}\b|"
     rf"[a-z]+(?:able|ible|ous|al|ic|ive|ful|less|ant|ent|ary|proof|est|er|s)\b)[a-z]+{_END}"),
    ("state", "^",
     rf"{_START}(?:is|are|isn't|aren't) (?:{_NAME}(?: {_NAME})*|they|he|she|anyone|anybody|"
     r"everyone|everything|it|[a-z]+s(?! (?:[a-z]+ )?(?:healthy|valid|red|green|free|"
     rf"alive|well|active|empty|(?!closed|delayed|cancell?ed|suspended)[a-z]+ed)\b)) "
     rf"(?:[a-z]+ )?{_STAGE}(?:{_END}| (?:for|at|"
     r"on|in|to|until|by) (?:the|this|my|our|lunch|business|now))"),
    ("state", "^",
     rf"{_START}(?:is|are) {_NAME}(?: {_NAME})* (?:in|at|on) (?:an? |the )?(?:meeting|"
     r"call|office|desk|break|leave|line|way|phone|holiday|vacation)"),
    ("asker", "i we",
     r"\b(?:am i (?!able|allowed|entitled|eligible|right\b|required|liable)|was i|did "
     r"i|have i|i've (?:got|used|spent|left)|do (?:i|we) (?:still |already |currently "
     r")?(?:have|owe)(?! to\b)|(?:i|we) (?:have|owe|get) left)\b(?!.*\b(?:need|should|"
     r"supposed|when|if|an?)\b)"),
    ("asker", "how",
     r"\bhow (?:many|much) [^?]*\b(?:do|did|have|am|are) (?:i|we)\b(?! (?:need|(?:have|"
     r"has) to (?!wait)|use|put|add|say|pay for an?|tip|eat|sleep|write|spell)\b)"),
    ("where", "where",
     rf"\bwhere(?:'s| is| are) (?:{_OWN} |your |he\b|she\b|everyone|they\b|{_KNOWN}[^?.]*\b(?!{_NORM}"
     rf"\b)[a-z]+(?:ed|ing)\b|{_KNOWN}(?:nearest|closest|next)\b)"),
    ("where", "nearest closest nearby near round around",
     r"\b(?:nearest|closest|nearby)\b|\bnear (?:me|here)\b|\b(?:round|around) here\b"),
    ("asker", "am are",
     r"\b(?:where|what|which|how)\b[^?]* (?:am i|are we)\b(?! (?:supposed|allowed|able|"
     r"entitled))"),
    ("own", "my our",
     r"\b(?:what|where|when|who|which|how)(?:'s| is| are| was| were| will| did| does)"
     r" (?:my|our)\b(?!.*\b(?:an?|if) )"),
    ("own", "my our", r"\bwhat(?:'s| is| are) the [^?]*\b(?:for|of|on|in) (?:my|our)\b"),
    # who holds an office or a place
    ("holder", "who",
     rf"\bwho(?:'s| is| are) (?!{_NAME}\b)(?!(?:the |an? )?(?:[a-z]+ ){{0,2}}(?:{_MAKER}|"
     r"eligible|allowed|entitled|responsible for (?:an?|paying)|considered|known|called|"
     r"Roman|Greek)\b)(?:the |our |my |your |in |on |at |up |next|third|second|first|"
     r"current|top|leading|winning)"),
    ("holder", "who",
     r"\bwho (?:owns|runs|leads|heads|chairs|coaches|manages|employs|holds|tops|supplies)"
     r"\b|\bwho (?:won|scored|lost|qualified)\b(?!.*\b(?:Battle|War|Nobel|in (?:the )"
     r"?\d|of \d))"),
    ("holder", "name who",
     rf"\bname of (?:the|our|my|your) (?!{_MAKER}){_TIMELESS_ONE}(?:[a-z]+ ){{1,3}}(?:of|"
     rf"at|for|here)\b|\bwho (?:was|were|got) [a-z]+ed(?: (?:off|out|last|first))?{_END}"),
    ("count", "how", rf"\bhow many (?:[a-z]+ )?{_TALLY}\b(?!.*\b(?:an?|each|every|per|need|should|can) )"),
    ("degree", "how", rf"\bhow old (?:is|are) {_KNOWN}"),
    ("past", "last latest recent previous",
     r"\b(?:when|what|who|where|how [a-z]+) (?:was|were) (?:the|my|our|your) (?:last|latest|most recent|previous) "
     r"[a-z]+(?! of\b)"),
    ("past", "which", rf"\bwhich [a-z]+ {_PAST_FORM}(?: (?:up|down|out|off|through|over|back))?{_END}"),
    ("schedule", "for over", r"\bwhat(?:'s| is) for (?:breakfast|lunch|dinner|dessert|supper)\b"
     r"|\bover (?:the (?:holidays?|weekend|break|summer|winter)|[Cc]hristmas|[Ee]aster|[Nn]ew [Yy]ear)\b"),
    ("which", "which", r"\bwhich (?:ones? )?of (?:our|my|your|these|those|them)\b"),
    ("deixis", "weekend holidays night evening afternoon morning",
     r"\b(?:for|at|on|over|during|in) the (?:weekend|holidays|night|evening|afternoon|morning)\b"
     r"(?!.*\b(?:an?|should) )"),
    ("past", "did", rf"\bwhat did (?:the )?{_NAME} (?:close|open|finish|end|trade|start)\b"),
    ("ranking", "",
     r"\b(?:(?:the|our|your|today's) top[- ](?!of\b)[a-z]+|best-?sell[a-z]+|most (?:popular|"
     r"watched|played|viewed|downloaded|read|streamed))\b"),
    # timetables and appointments
    ("schedule", "when",
     rf"\bwhen(?:'s| is| are| does| do) (?:{_KNOWN}(?!.*\b(?:time to|become|change colou?r|"
     r"sleep|flower|hibernate))|it\b|he\b|she\b|they\b)(?!.*\b(?:used|considered|needed|"
     r"an?) )"),
    ("schedule", "what when next",
     rf"\bwhat time (?:is|are|does|do|will|did)\b|\bwhen(?:'s| is| are) {_NAME}{_END}|"
     r"\bwhen(?:'s| is| are) (?:next|the next|dinner|lunch|checkout|kick-?off)\b|\bthe "
     r"next [a-z]+\b"),
    ("schedule", "monday tuesday wednesday thursday friday saturday sunday",
     r"\b(?:on|for|by|until|till|since|before|after|this|next|last|from) (?:[Mm]on|[Tt]ues|"
     r"[Ww]ednes|[Tt]hurs|[Ff]ri|[Ss]atur|[Ss]un)day\b(?!s)"),
    ("schedule", "",
     r"\bthe \d{1,2}[:.]\d\d\b|\b(?:at|around|by|before|after|until|for) (?:(?:about|"
     r"half|quarter) )?(?:\d{1,2}(?:[:.]\d\d)? ?(?:am|pm|o'clock)|eight|nine|ten|seven|"
     r"six)\b(?! (?:years|people|persons|times|hours))"),
    ("deixis", "ago in",
     r"\b(?:\w+|few|couple of) (?:minutes?|hours?|days?|weeks?|months?) ago\b|(?<!are "
     r")(?<!is )(?<!there )\bin (?:the (?:next|last|past|coming)|an?|\d+|two|three|ten|"
     r"a few) (?:minutes?|hours?|days?|weeks?)\b(?! do\b| a\b)(?=[^.]*\?)"),
    ("deixis", "since still again monday tuesday wednesday thursday friday saturday sunday",
     rf"\bsince (?:the|this|my|our|last|{_NAME})|\b(?:is|are|do|does|has|have|was|were|"
     rf"can|will)\b[^?]*\b(?:still(?! (?:life|water|image))\b|again{_END})|\b(?:is|are|"
     r"was) (?:[Mm]on|[Tt]ues|[Ww]ednes|[Tt]hurs|[Ff]ri|[Ss]atur|[Ss]un)day\b"),
    ("quantity", "state", rf"\bstate of (?:the {_TIMELESS_ONE}|my|our|play)"),
    ("which", "which",
     r"\bwhich [a-z]+ (?:has|have|sells?|stocks?|offers?|takes?) (?:the (?!(?:most|[a-z]+est)"
     r"\b)|this|that|any|room|space)"),
    ("state", "^",
     rf"{_START}(?:is|are|was) (?:anything|anyone|anybody|something|everything|everyone|"
     r"somebody|nobody) "),
    ("deixis", "",
     r"\b(?:yet|anymore|these days|right now|recently|lately|overnight|upcoming|ongoing|soon|any "
     r"minute|any moment|of the (?:day|week|month)|ends?(?: today)?\W*$)\b(?<!yet another)"),
    # what there is, here and now: stock, room, trouble
    ("there", "there",
     r"\b(?:is|are|isn't|aren't) there (?!an? (?:way|difference|limit|word|rule|law|name|"
     r"formula|fee|charge|cure)\b)(?:an?|any|some|enough|still|no|many|much)? ?[^?.]*\b(?:on|"
     rf"in|at|near|along|outside|for|between) (?:the {_TIMELESS_ONE}[a-z]|this|that|my|"
     r"our|your|here|line|route|terminal|platform|[A-Z]{1,3}\d)"),
    ("there", "there",
     r"\b(?:is|are) there (?:any|enough|still)\b(?!.*\b(?:way|difference|limit|fee|charge|"
     r"side effects|rules?|laws?|requirements?|restrictions?|discounts? for|benefits?|"
     r"risks?)\b)"),
    ("there", "any anything anyone anybody",
     rf"{_START}(?:any|anything|anyone|anybody) (?!idea|advice|tips|suggestions|recommendation|"
     r"thoughts|way|good|ideas)[a-z]+"),
    ("there", "there", r"\b(?:is|are) there [^?]*\b(?:near|around|along|outside) "),
    ("have", "^",
     rf"{_START}(?:does|do|don't|doesn't) (?:{_KNOWN}|{_NAME} |he |she |they )[^?]*\b(?:any|"
     r"left|still|yet|enough|now|more)\b"),
    ("have", "do",
     r"\bdo (?:you|they|we) (?:still |currently )?(?:have|carry|stock) (?:the |this |"
     r"that |these |those |any(?! (?:kind|sort|policy|tips|advice|experience|suggestions)"
     r")|one |it\b|them\b|room|space|time|anything)"),
    # what is counted, measured, ranked
    ("count", "how",
     rf"\bhow (?:many|much) (?:[a-z]+ )?(?:(?:is|are) )?(?:(?:on|in|of) )?(?:the {_TIMELESS_ONE}|"
     rf"{_OWN} |your |these |those )"),
    ("count", "how",
     r"\bhow many [^?]*\b(?:are|is|were|was) (?:there )?(?:(?:still|currently|being) "
     rf")?(?!there\b|in an?\b|in the [A-Z]|[A-Z])(?:(?!in\b|on\b){_STAGE}{_AFTER}|{_ING}|"
     rf"(?:in|on|at|ahead|behind) (?:the {_TIMELESS_ONE}|{_OWN} |line\b|front\b))(?!.*\b(?:an?|"
     r"two|each|every|by law) )"),
    ("count", "how",
     r"\bhow many [^?]*\b(?:remain|are left|signed|voted|attended|came|showed|registered|"
     r"joined|called|visited|bought|ordered|died|were (?:killed|injured|sold))\b(?!.*\b(?:War|"
     r"Titanic|Holocaust|Black Death|plague))"),
    ("count", "how",
     rf"\bhow (?:many|much) (?:[a-z]+ ){{1,2}}{_PAST_FORM}{_AFTER}(?!.*\b(?:War|Titanic|"
     r"Holocaust|Black Death|plague|Empire|century)\b)"),
    ("count", "how",
     r"\bhow many [^?]* do you (?:still |currently )?have\b|\bhow (?:many|much|long) "
     r"[^?]*\b(?:until|till)\b"),
    ("count", "how", rf"\bhow (?:many|much) [^?]*\b(?:does|do|has|have|did|will) {_KNOWN}(?!.*\ban? )"),
    ("embedded", "know tell say see heard find",
     r"\b(?:know|tell me|say|see|heard|find out) (?:where|when|what|who|why|how|which "
     rf"[a-z]+) (?:{_KNOWN}|{_NAME} |he |she |they |it )[^?]*\b(?:{_PAST_FORM}|is|are|"
     rf"was|were|has|have|will|stands?|goes|leaves|arrives|starts|opens|closes|ends){_AFTER}"),
    ("deictic", "this that these those",
     rf"\b(?:what|which) [a-z]+ (?:is|are|was|were) (?:this|that|these|those){_END}"),
    ("price", "cost", r"\b(?:what|how much) (?:does|do|did|will|would) [^?]*\bcost\b"),
    ("past", "who", rf"\bwho (?!{_MADE}\b){_PAST_FORM} (?:{_KNOWN}|him\b|her\b|it\b|us\b|me\b)"),
    ("embedded", "whether if",
     rf"\b(?:whether|if) (?:{_KNOWN}|{_NAME} |he |she |they |it |there |anyone |i |we "
     r")[^?]*\b(?:has|have|had|is|are|was|were|will|did|got|made|[a-z]+ed)\b(?=.*\?)(?<!what "
     r"happens)"),
    ("predicate", "which what who how",
     r"\b(?:which|what|who|how many)(?:'s)? [^?]*\b(?:is|are) (?:[a-z]+ly )?(?:top|first|"
     r"second|third|last|ahead|behind|leading|(?:at|on|under|out of|behind|ahead of|over|"
     rf"below|above|within) [a-z]+)(?:{_END}| (?:of|in|at) (?:the|our|this|my)\b)|\bwhat(?:'s|"
     rf" is| are| was| were) {_KNOWN}[^?]* like(?:{_END}| (?:in|at|on|right|today|this|"
     r"outside|between|after|before|since|near|for|with|when)\b)"),
    ("predicate", "^",
     rf"{_START}(?:is|are|isn't|aren't) {_KNOWN}(?!.*\b(?:an?|part of|or the|from|available "
     r"in) )[^?.]*\b(?:(?:on|in|at|under|behind|near|by|over|past|within) (?:the|my|our|"
     r"your|this|today|stock|progress|use|session|order|place|town|leave|fire|strike|"
     r"hold|duty|sale|time|schedule|track)|out of [a-z]|about to|due to|up to date|ahead "
     r"of) ?"),
    ("quantity", "would", r"\b(?:what|which|how much)\b[^?]* would (?:i|we) (?:get|pay|save|earn|owe)\b"),
    ("price", "how",
     rf"\bhow much (?:is|are|does|do|was|did|will|would) (?:{_KNOWN}|it\b|{_NAME}|tickets?|"
     r"[a-z]+s\b)(?!.*\b(?:weigh|know|need|sleep|pay an?))"),
    ("quantity", "what",
     r"\bwhat(?:'s| is| are| was| were) (?:the|your|our|his|her|their|today's) "
     r"(?!(?:minimum|maximum|average|typical|default|standard|usual) )(?:[a-z0-9-]+ "
     rf"){{0,2}}{_QUANTITY}{_AFTER_NOUN}(?!.*\b(?:an?|mean|policy|stand for) ){_UNIT_OF_NATURE}"),
    ("quantity", "what",
     r"\bwhat(?:'s| is| are| was) (?:the )?(?:[a-z]+ ){0,2}(?:price|fare|rate|cost|wage)"
     r"s?(?: (?:of|for|from)\b(?! (?:change|living|return|decay))|[ ?.!]*$)"),
    ("quantity", "what which",
     rf"\b(?:what|which) (?:{_QUANTITY})(?:'s| is| are| do| does| did| would| will| am|"
     rf" can)\b(?!.* (?:need|should|an?)\b){_UNIT_OF_NATURE}"),
    ("degree", "how",
     r"\b(?!how (?:far|close) [^?]*\b(?:from|to) )how (?!(?:big|tall|large|heavy|wide|"
     r"thick|old|often|many|much|come|strong|hard|accurate|reliable|secure)\b)[a-z]+(?: "
     rf"is| are|'s| was) (?:{_KNOWN}|it\b)(?!.*\b(?:an? |warranty|period|guarantee|intestine|"
     rf"pregnancy)){_GENERIC}"),
    ("degree", "how",
     rf"\bhow(?:'s| is| are) (?:{_KNOWN}|it |{_OWN} |your |things|everyone|{_NAME} )(?![^?]*\b(?:mad"
     r"e|calculated|formed|measured|defined|used|pronounced|spelled|spelt|structured|"
     r"related|different|work(?:ed|s)?|[a-z]+ed)\b)"),
    ("which", "which",
     rf"\bwhich [^?]*\b(?:am i|are we)\b|\bwhich [^?]*\b(?:is|are) (?:{_ING}|(?:{_STAGE})"
     rf"(?: (?:on|in|at|for|to) (?:the|this|our|my)\b|{_END}))(?!.*\b{_NORM}\b)"),
    ("going on", "what",
     rf"\bwhat(?:'s| is| are) (?:(?:on|new|up|next|left|due|open){_AFTER}|wrong with "
     r"(?:the|my|our)\b|(?:the )?(?:latest|matter)\b)(?! an?\b)|\bwhat (?:happened|changed|"
     r"broke|caused|went wrong)(?: to| with| in| at)? (?:the|my|our|this|that|last|here)"
     r"\b(?! [A-Z])"),
    # orders to look something up, and things with a number of their own
    ("look up", "show check track look pull monitor refresh watch notify let alert remind",
     rf"{_START}(?:(?:can|could|would) you )?(?:please )?(?:show(?: me)?|check|track|look "
     r"up|pull up|monitor|refresh|watch|notify me|let me know|alert me|remind me)(?: "
     r"(?:on|when|if|whether|who|what|which|where|how many|how much)\b(?! to\b)| (?:the|"
     r"my|our|all|any|open|latest|order|flight|shipment|parcel|ticket)\b(?! (?:steps|"
     r"way|difference|formula|syntax|spelling|grammar)))"),
    ("look up", "list find get give tell count read send fetch bring open",
     rf"{_START}(?:(?:can|could|would) you )?(?:please )?(?:list|find|get|give me|tell "
     rf"me|count|read me|send me|fetch|bring up|open) (?:all )?(?:{_OWN}|the (?:open|pending|"
     r"unread|remaining|available|overdue|current|latest|active|failed|next))\b"),
    ("record", "",
     r"\b[A-Z]{1,4}[ -]?\d{2,}[A-Z0-9]*\b(?=.*\?|$)(?<!COVID-19)|\b(?:order|ticket|case|"
     r"invoice|booking|flight|gate|room|table|pull request|pr|issue|build|shipment|parcel|"
     r"tracking)(?: number| no\.?)? #?[A-Za-z]{0,3}-?\d{2,}\b(?! ?:)"),
)  # fmt: skip
_RULES = tuple((name, frozenset(cues.split()), re.compile(pattern)) for name, cues, pattern in RULES)
_POLAR = re.compile(
    rf"{_START}(?:is|are|was|were|did|has|have|will|does|do|isn't|aren't|wasn't|didn't|hasn't|haven't|won't|don't|"
    r"doesn't) "
)
_WORD = re.compile(r"[a-z]+")

# Talk of the kind and not of the thing: general truths, advice, classification.
_GENERAL = re.compile(
    # what a request brings along: a text, a picture, code
    r"\b(?:this|these|following|attached|above|below) (?:[a-z]+ )?(?:text|sentence|paragraph|passage|article|document|"
    r"essay|poem|story|paper|letter|email|message|word|phrase|quote|image|picture|photo|chart|graph|table|diagram|code|function|"
    r"error|snippet|script|query|regex|equation|expression|problem|puzzle|riddle|question|claim|statement|list|data)s?\b|"
    r"\b(?:should|must|supposed to|safe to|legal to|possible to|okay to|ok to|normal to|"
    r"better to|worth learning|healthy to|"
    r"true that|in general|ever|usually|normally|generally|typically|on average|stand for|called when)\b"
    rf"|{_START}(?:is|are|was|were|does|do|can|did|has|will) (?:an? |it (?:bad|good|rude|"
    r"wrong|dangerous|safe|ok|okay|legal|"
    r"illegal|possible|healthy|normal|true|hard|difficult|easy|better|worth|necessary|cheaper|allowed)\b)"
    rf"|{_START}(?:write|compose|draft|translate|summari[sz]e|explain|describe|define|imagine|"
    r"suggest|recommend|generate|"
    r"create|calculate|solve|convert|prove|compare|outline|paraphrase|proofread|correct|rewrite)\b"
    r"|\b(?:invented|discovered|founded|born|wrote|written by|painted|composed|introduced|abolished)\b"
    r"|\bwhat (?:is|are|was|were) (?:the )?(?:[A-Z]|an? |(?:[a-z]+ )?(?:meaning|definition|"
    r"difference|purpose|rules?|capital|"
    r"plural|opposite|formula|chemical|symbol|recipe)\b)"
)


def why_live(text: str) -> str | None:
    """The rule by which a question asks for the state of the moment; None where none does.

    `text` is cased as it was written, apostrophes straight, without quotations.
    """
    asked = _lower_starts(text)
    if _GENERAL.search(asked):
        return None
    words = set(_WORD.findall(asked.lower()))
    if _POLAR.search(asked):
        words.add("^")
    for name, cues, rule in _RULES:
        if (not cues or cues & words) and rule.search(asked):
            return name
    return None


def _lower_starts(text: str) -> str:
    """Sentence starts in lower case, so that capitals that are left are names; "I" is no name."""
    lowered = re.sub(r"(^|[.!?:]\s+)([A-Z])(?=[a-z' ])", lambda match: match[1] + match[2].lower(), text.strip())
    return re.sub(r"\bI(?='|\b)(?!\.)", "i", lowered)
