"""The words the second check knows. Add to them: every list is plain text, one group a line.

A word that is missing here costs a hit, not a wrong answer: what the rules cannot explain they refuse.
"""

from __future__ import annotations

from .words import stem, word_set

# Words that carry no subject of their own: two questions that differ in these alone ask the same thing.
FUNCTION = word_set(
    """
    a an the some any of to in on at by for from with into onto about as than and or but if then so that which
    who whom whose what when where why how is are was were be been being am do does did done doing can could
    shall should will would may might must have has had having i me my mine you your yours we us our ours he
    him his she her hers it its they them their theirs this these those there here one ones get gets got getting
    not no never without out off up down away
    please just really very quite also too way ways method manner good best better right correct proper
    properly easy easiest easily simple simplest quick quickest need needs want wants like mean means know tell
    explain show give help let go goes going there's thing things kind sort step steps wonder question reason
    cause causes make makes making made possible take takes use uses used using work works still already again even
    ever now many much often number amount
    """
)

# First word of a line: what the others are read as.
_SYNONYMS = """
    fix repair mend
    tap faucet
    change switch alter
    turn convert transform
    end cancel terminate quit
    clear unclog unblock
    block clog
    start begin commence
    raise increase boost
    improve better enhance
    lower reduce decrease cut
    buy purchase
    speed fast quickly rapid rapidly faster fastest
    large big largest biggest
    small little tiny
    cheap inexpensive cheapest
    high tall highest tallest
    illness disease sickness
    ill sick
    phone smartphone cellphone
    car automobile
    movie film
    autumn fall
    holiday vacation
    flat apartment
    lift elevator
    rubbish garbage trash waste
    dispose throw
    delete erase
    error mistake
    adult grownup
    doctor physician
    children kid child
    job occupation
    salary wage pay
    author write writer wrote
    artist paint painter
    installation install setup
    mail email
    tv television
    usa us america
    uk britain
    allow permit
    require need
    safe harmless
    distance far
    money currency
    abroad overseas
    color colour
    tire tyre
    liter litre
    meter metre
    kilometer kilometre
    center centre
    gray grey
    license licence
    fridge refrigerator
    put set
    remove eliminate rid
    photo picture image photograph
    file document
    teach train
    differ difference different
    minimum lowest
    maximum highest
    symptom sign
    recommend suggest
    old leftover
    refund refunded
    trip journey
    find locate
    finish complete
    ask request
    search look
    talk speak
    close shut
    gift present
"""

# Opposites: one word of a pair in one question, the other in the other.
_ANTONYMS = """
    increase/lower increase/decrease increase/reduce raise/lower rise/fall rise/drop gain/lose win/lose
    enable/disable open/close start/stop begin/end import/export upload/download push/pull buy/sell
    borrow/lend arrive/depart enter/exit enter/leave accept/reject accept/refuse approve/deny allow/forbid
    allow/block love/hate like/hate like/dislike attract/repel encourage/discourage show/hide tighten/loosen
    lock/unlock fill/empty expand/shrink speed/slow fast/slow faster/slower accelerate/brake strengthen/weaken
    heat/cool hot/cold warm/cool warm/cold hottest/coldest light/dark light/heavy bright/dark
    wet/dry hard/soft hard/easy thick/thin thicken/thin wide/narrow deep/shallow long/short longest/shortest
    tall/short tallest/shortest tall/low high/low highest/lowest maximum/minimum max/min most/least more/less more/fewer
    much/little lot/little many/few large/small largest/smallest big/small biggest/smallest cheap/expensive
    cheapest/expensive old/new oldest/newest oldest/youngest old/young early/late earlier/later before/after
    first/last previous/next above/below over/under inside/outside indoor/outdoor in/out on/off up/down
    with/without left/right north/south east/west good/bad best/worst better/worse healthy/unhealthy pro/con
    advantage/disadvantage benefit/drawback benefit/risk strength/weakness true/false safe/dangerous legal/illegal
    public/private positive/negative add/remove add/subtract multiply/divide insert/remove install/remove attach/detach
    connect/disconnect freeze/thaw freeze/defrost melt/freeze boil/freeze clean/dirty save/spend save/delete
    male/female man/woman boy/girl mother/father husband/wife brother/sister rich/poor always/never
    everyone/nobody all/none same/different front/back top/bottom upper/lower sunrise/sunset lend/return
    success/failure succeed/fail pass/fail live/die alive/dead send/receive give/receive give/take ask/answer
    question/answer teach/learn hire/fire create/delete create/destroy build/demolish assemble/disassemble zip/unzip
    compress/decompress encrypt/decrypt encode/decode mute/unmute follow/unfollow archive/restore backup/restore
    remember/forget sleep/wake stand/sit input/output internal/external major/minor ancient/modern
    vegetarian/meat raw/cooked sweet/sour sweet/salty summer/winter day/night am/pm
"""

# Things that exclude each other: one of a line in one question, another of the same line in the other.
_SIBLINGS = """
    monday tuesday wednesday thursday friday saturday sunday
    january february march april may june july august september october november december
    spring summer autumn winter
    today tomorrow yesterday tonight
    morning noon afternoon evening night midnight
    red blue green yellow black white orange purple pink brown gray
    dog cat horse cow pig sheep goat rabbit hamster bird fish snake bee wasp tiger lion elephant mouse rat
    mother father brother sister son daughter uncle aunt grandmother grandfather husband wife
    breakfast lunch dinner supper
    beef pork chicken lamb fish turkey duck tofu
    coffee tea wine beer milk juice water
    gold silver copper iron lead tin platinum aluminum steel
    wood metal plastic glass leather cotton wool silk
    windows linux macos mac android ios ubuntu debian
    python java javascript ruby rust go kotlin swift php perl scala
    chrome firefox safari edge
    mysql postgres sqlite oracle mongodb
    english german french spanish italian portuguese dutch russian chinese japanese korean arabic hindi swahili
    germany france spain italy portugal austria switzerland belgium poland sweden norway denmark finland ireland
    usa uk canada mexico brazil peru argentina china japan india kenya egypt morocco australia vietnam
    london paris berlin madrid rome vienna prague lisbon oslo tokyo chicago boston amsterdam venice budapest
    mercury venus earth mars jupiter saturn uranus neptune moon sun
    car bus train plane bicycle boat truck motorcycle ferry tram
    guitar piano violin cello drum flute trumpet harp
    heart liver kidney lung brain stomach spleen
    head neck shoulder back arm hand leg knee foot ear eye nose tooth
    football tennis basketball volleyball hockey cricket golf rugby baseball
    dollar euro pound yen franc
    celsius fahrenheit kelvin
    student teacher
    baby child teenager adult
"""

NEGATORS = word_set(
    "not no never without none nobody nothing neither nor nowhere except unless hardly fail unable"
)

SYNONYM: dict[str, str] = {}
for _line in _SYNONYMS.strip().splitlines():
    for _word in _line.split():
        SYNONYM.setdefault(stem(_word), stem(_line.split()[0]))

ANTONYMS: frozenset[frozenset[str]] = frozenset(
    frozenset(stem(word) for word in pair.split("/")) for pair in _ANTONYMS.split()
)

SIBLINGS: tuple[frozenset[str], ...] = tuple(
    frozenset(SYNONYM.get(stem(word), stem(word)) for word in line.split())
    for line in _SIBLINGS.strip().splitlines()
)
