"""The signs that alone refuse a text, in the order in which a reason is given. Patterns only."""

import re
from typing import NamedTuple


class Sign(NamedTuple):
    name: str
    why: str
    """For a person, to be read after "not shared: "."""
    pattern: re.Pattern[str]
    unless: re.Pattern[str] | None = None
    """Not where this is found too."""
    in_how_to: bool = False
    """Also in a question how something is done in general ("How do I cancel my order?")."""


def any_of(*parts: str) -> re.Pattern[str]:
    r"""Finds what one of the parts finds. Those that begin with ^ or \b share it, so that most
    places of a text are passed by at once: three times as quick."""
    first, word, other = list[str](), list[str](), list[str]()
    for branch in _branches("|".join(parts)):
        if branch.startswith("^"):
            first.append(branch[1:])
        elif branch.startswith(r"\b"):
            word.append(branch[2:])
        else:
            other.append(branch)
    shared = [
        f"{mark}(?:{'|'.join(those)})" for mark, those in (("^", first), (r"\b", word)) if those
    ]
    return re.compile("|".join(shared + other))


def _branches(pattern: str) -> list[str]:
    """The alternatives between which it chooses at its top level."""
    found, depth = [""], 0
    for piece in re.findall(r"\\.|\[[^]]*\]|.", pattern):
        if piece == "|" and depth == 0:
            found.append("")
            continue
        depth += {"(": 1, ")": -1}.get(piece, 0)
        found[-1] += piece
    return found


# A technique follows: what is asked for is code, not that it is done.
_CODE = re.compile(
    r"\b(?:in|with|using|for|on) (?:python|java\w*|typescript|c|c\+\+|c#|go|golang|rust|bash|"
    r"sh|sql|postgres\w*|"
    r"mysql|excel|php|ruby|swift|kotlin|scala|haskell|r|perl|git|github|linux|unix|windows|"
    r"macos|html|css|vim|"
    r"react\w*|vue|angular|node\w*|django|flask|docker|kubernetes|terraform|ansible|regex|curl|"
    r"jq|awk|sed|"
    r"numpy|pandas|latex|markdown|json|xml|yaml)\b|\b(?:function|regex|script|query|program|"
    r"class|method)\b"
)
_SEASON = any_of(
    r"\bin (?:january|february|march|april|may|june|july|august|september|october|november|"
    r"december|"
    r"winter|summer|spring|autumn|(?:the )?1[0-9]{3}s?|(?:the )?20[0-9]{2}s?)\b",
    r"\b1[0-9]{3}\b|\b20[01][0-9]\b",
)

_TALKED = (
    "said|told|asked|mentioned|recommended|wrote|suggested|discussed|talked|promised|gave|meant"
)
_TALK = (
    "say|tell|ask|mention|recommend|write|suggest|discuss|talk|promise|give|mean|decide|agree|just|"
    "remember|think"
)
_DOC = (
    "document|file|pdf|image|photo|picture|screenshot|article|text|paragraph|email|letter|essay|code|"
    "script|proof|table|spreadsheet|contract|report|video|recording|error message|message|sentence|"
    "poem|story|answer|question|list|function|class|method|query|diagram|chart"
)
_WHEN = (
    "monday|tuesday|wednesday|thursday|friday|saturday|sunday|week|weekend|month|year|quarter|"
    "morning|afternoon|evening|night|season|spring|summer|autumn|winter|hour|minutes?|days?"
)

_CURRENCY = (
    "(?:usd|eur|gbp|jpy|chf|inr|cny|cad|aud|btc|dollars?|euros?|yen|yuan|won|rupees?|pesos?|"
    "francs?|kron[aer]+|rand|lira|zloty|bitcoins?)"
)

CERTAIN = (
    Sign(
        "conversation",
        "it speaks of what was said before",
        any_of(
            rf"\b(?:i|you|we) (?:just |have |already |both )?(?:{_TALKED})\b",
            rf"\bdid (?:i|you|we) (?:{_TALK})\b|\bdo (?:you|we) (?:remember|mean|think)\b",
            r"\b(?:previous|above|earlier|preceding|prior|former|latter) "
            r"(?:answer|message|question|point|paragraph|reply|one|list|sentence|code|example|"
            r"poem|version|step)\b",
            r"\b(?:the|your|my) (?:last|first|second|third) (?:answer|message|question|point|"
            r"reply|one|option|"
            r"sentence|example|thing (?:you|i))\b(?! (?:of|in) )",
            r"^(?:rewrite|shorten|translate|use|explain|summari[sz]e|repeat) the (?:above|same|"
            r"previous)\b",
            r"\byour (?:last |previous )?(?:answer|reply|response|explanation|suggestion)\b",
            r"\bour (?:conversation|chat|discussion)\b|\bwe (?:have so far|stopped|left off)\b",
            r"\b(?:as|like|than|format) before\b|\bbefore that\b|\bstart over\b|\btry again\b",
            r"\bremember (?:that|what|when|me|my)\b|^never ?mind\b|^forget\b|^you (?:forgot|"
            r"missed|(?:are|were) (?:wrong|right|not|welcome|great|mistaken|sure))\b",
            r"\btell me (?:more|another)\b|^what else\b|^(?:any|what) other\b|\bme another\b|"
            r"\bagain[?.!]*$",
            r"^(?:what|how) about\b|^what if\b(?!.*\b(?:was|were|had|could|did)\b)|^same\b",
            r"^(?:go on|continue|carry on|keep going|elaborate)\b|^(?:undo|redo|repeat)\b",
            r"\b(?:which|another|the other|this|that|a different) (?:one|version)\b|"
            r"^use \w+ instead\b|\binstead[.!]*$",
            r"^(?:that|this|it) (?:is|was|does|did|do|still|works?|makes?|seems?|looks?|helped|"
            r"did not|not)\b(?! (?:called|said|possible|true))",
            r"^(?:make|be|keep|use|write|sound) (?:it |the |that )?(?:\w+ )?(?:shorter|longer|"
            r"simpler|clearer|easier|better|nicer|warmer|softer|fewer|less|more|\w+ier)\b",
            r"^(?:i|we) (?:would )?like (?!to )|\bi wanted\b|^the \w+(?: \w+)? one[.!]*$",
            r"^i (?:do not|did not) (?:understand|get|mean)\b|^i (?:think|meant|agree|"
            r"disagree)\b",
            r"\b(?:of|between|from) the (?:two|three|four|five|six)(?: (?:is|are|was|were|has|have|"
            r"do|does|did|will|would|can|could|should)\b|[?.!]*$)",
            r"^can you (?:redo|repeat|elaborate|clarify|expand)\b|\bmore detail\b",
        ),
        unless=any_of(r"^how (?:do|can|to) .*\b(?:what|whether)\b.*\bmeant\b"),
        in_how_to=True,
    ),
    Sign(
        "opening",
        "it begins as an answer or a greeting, not as a question",
        any_of(
            r"^(?:and|or|but|because|then|now|no|nope|yes|yeah|ok|okay|thanks?|thank you|hello|"
            r"hi|hey|sure|great|"
            r"good (?:morning|evening|afternoon|night)|sorry|bye|goodbye|hm+|well|wait|stop|"
            r"exactly|right|wrong)\b"
            r"(?! (?:vs|versus|or)\b)",
            r"^(?:why|how|when|where|who|what|which|really|how come)\b[^\w]*(?:not)?[^\w]*$",
        ),
        in_how_to=True,
    ),
    Sign(
        "statement",
        "it tells something and asks nothing",
        any_of(
            r"^(?:i|we|my|our|you|the|it|there|he|she|they)\b"
            r"(?!.*\b(?:what|how|why|where|which|who|when|should|can i|could|difference|vs|"
            r"recipe)\b)[^?.!:]*[.!]*$",
        ),
        in_how_to=True,
    ),
    Sign(
        "pointing",
        "it points at something that is not in it",
        any_of(
            r"^(?:(?:what|who|whom|whose|which|where|when|why|how)(?: \w+)?(?: \w+)? )?"
            r"(?:is|are|was|were|did|does|do|has|have|had|can|could|will|would|should|not) "
            r"(?:not )?(?:he|she|they|these|those|it|his|her|their|its|"
            r"(?:this|that)(?! \w+ (?:\w+ )?(?:from|of|in|with|when|where|"
            r"that)\b))\b(?! (?:keyword|operator))",
            rf"\b(?:this|that|these|those) (?:two |three )?(?:{_DOC}|song|meeting|bug|word|"
            rf"line)s?\b",
            r"\b(?:which|who|what|how many|all|some|one|any|each|both) of (?:these|those|them|"
            r"this)\b",
            r"^(?:make|turn|put|say|do|fix|change|translate|rewrite|explain|summari[sz]e|"
            r"shorten|format|read|"
            r"check|convert|add|mark|assign|close|delete|use) (?:it|this|that|these|those|"
            r"them)\b",
            r"\b(?:buy|get|use|find|see|have) (?:one|it|them|there)[?.!]*$|\b(?:get|go|been|"
            r"live|over|parking) there[?.!]*$",
            r"\b(?:write|say|do|put|phrase|express|explain|solve|fix|removed?|"
            r"changed?) (?:that|this|it)[?.!]*$",
            r"\bmean by (?:it|that|this)\b|\b(?:with|to|for|of|about|like|at|in|than|"
            r"under) (?:it|this|that|them|him|her)[?.!]*$",
            r"\b(?:this|these|those)[?.!]*$|\bfrom here\b|\bhere[?.!]*$|"
            r"\bhow (?:long ago )?was that\b",
            r"\b(?:what|where|who|when|how \w+) (?:is|are|was|were) (?:his|her|their|its)\b",
        ),
        unless=re.compile(
            r"\b(?:refer|mean) to\b|\bin (?:english|a sentence)\b|\bthey (?:call|say)\b|"
            r"\bdifference between\b"
        ),
        in_how_to=True,
    ),
    Sign(
        "attachment",
        "it is about something that was to come with it",
        any_of(
            r"\b(?:attached|uploaded|enclosed|pasted)\b",
            rf"\b(?:the|following|my) (?:\w+ )?(?:{_DOC})s? (?:below|above|attached|i (?:sent|"
            rf"pasted|uploaded|wrote))\b",
            rf"\bthe following (?:{_DOC})\b|\b(?:below|above)[.?!]*$",
            rf"^(?:fix|check|proofread|review|summari[sz]e|translate|explain|read|correct|"
            rf"improve|debug|refactor|"
            rf"shorten|find|add|compare) .*\b(?:my|the two|the) (?:{_DOC}|files|bug)s?\b",
            rf"^(?:give|grade|rate|judge|score|evaluate) (?:the|my) (?:{_DOC})\b(?! of)",
            rf"\b(?:does|do|is|are|did|was) (?:the|my) (?:{_DOC}|book|film|movie|"
            rf"author) (?:end|begin|start|say|mean|about|do|work|correct|right|good|complete)\b",
            rf"\bline \d+\b|\bin (?:my|this|the) (?:{_DOC})\b",
        ),
        unless=re.compile(r"quoted|\bof (?:a|the|an)\b.*\b(?:novel|book|film|bible)\b"),
        in_how_to=True,
    ),
    Sign(
        "now",
        "its answer changes with the time",
        any_of(
            r"\b(?:today|tonight|tomorrow|yesterday|right now|nowadays|currently|at the moment|"
            r"these days|"
            r"so far|lately|recently|as of now|presently|meanwhile|overdue|"
            r"upcoming)\b(?!['’]s date in)",
            rf"\b(?:this|last|next|past|coming|following) (?:\w+ )?(?:{_WHEN})\b",
            r"\bnext (?:\w+ ){0,3}(?:bus|train|flight|tram|ferry|race|game|match|meeting|"
            r"appointment|episode|election|holiday|payday)\b",
            r"\b(?:latest|newest|recent|upcoming|current(?= [a-z]))\b(?! (?:in (?:a|the)|flow|"
            r"through|memory|of))",
            r"\bnow[?.!]*$|\bstill\b|\bago\b|\byet[?.!]*$|\banymore\b|\bjust now\b|"
            r"\bany ?more[?.!]*$",
            r"\b(?:how (?:long|many (?:days|weeks|months|hours))|days|weeks) (?:until|till|"
            r"to go)\b",
            r"\bwhat (?:time|day|date) is it\b|\bthe (?:time|date)[?.!]*$|"
            r"\bwhat is new\b(?! in .*\d)|\bwhat changed\b",
            r"\bon (?:monday|tuesday|wednesday|thursday|friday|saturday|sunday)[?.!]*$",
        ),
        unless=any_of(
            _SEASON.pattern,
            r"\bif today is\b|\bcalled in\b|^(?:write|compose|draft|translate|define)\b|"
            r"\bwhy (?:do|does|is|are) (?!my)\w+.*\bstill\b",
            r"\b(?:current|recent|latest) (?:memory|flow|directory|folder|branch|affairs|"
            r"account)\b|\bquoted\b",
        ),
    ),
    Sign(
        "moment",
        "its answer changes with the day",
        any_of(
            r"\b(?:today|tonight|tomorrow|yesterday|right now|at the moment|"
            r"these days)\b(?!['’]s)",
            rf"\b(?:this|last|next) (?:{_WHEN})\b",
        ),
        unless=any_of(
            _CODE.pattern,
            _SEASON.pattern,
            r"\bcalled\b|\bquoted\b|\bif today is\b|^(?:write|compose|draft|translate|define)\b",
        ),
        in_how_to=True,
    ),
    Sign(
        "situation",
        "it asks about something under way that only the asker knows",
        any_of(
            r"^(?:(?:what|why|when|where|how|which|who)(?: \w+)? )?(?:is|are|was|were|did|does|"
            r"do|has|have|will) the "
            r"(?:last |latest |new |next |first )?(?:\w+ )?(?:meeting|queue|update|build|"
            r"pipeline|deployment|deploy|servers?|"
            r"database|order|deadline|strike|game|match|party|appointment|flight|delivery|"
            r"backup|release|sprint|incident|"
            r"budget|api|website|site|package|parcel|office|shop|store|website|tests?|data|"
            r"report|page|job)\b(?! (?:of|in|on)\b)",
            r"\b(?:is|are) (?:failing|running|pending|waiting|coming|left|open|missing|online|"
            r"offline|unpaid|late|due|done|"
            r"ready|busy|broken|on|stuck)[?.!]*$|\b(?:merged|broke|reported|approved|deployed|"
            r"assigned|signed) (?:the|this|that|it)\b",
            r"^(?:did|has|have|will|is) (?!it\b|there\b)[a-z]+ .*\b(?:my|me|our|us)\b(?! own)|"
            r"\b(?:does|do|did|has|will|can) my "
            r"(?:team|company|boss|manager|landlord|bank|doctor|contract|flight|order|plan|"
            r"subscription)\b",
        ),
        unless=any_of(_SEASON.pattern, r"\bquoted\b|\bwhat (?:is|does) an?\b"),
    ),
    Sign(
        "volatile",
        "it asks for something that changes by the hour or the day",
        any_of(
            r"\b(?:weather|forecast)\b(?! (?:balloon|station|vane|and climate|patterns?))",
            r"\b(?:traffic|outages?|headlines|top stories|breaking news|trending|stock price|"
            r"share price|in the news)\b",
            r"\b(?:pollen|tide|market cap\w* of|(?:unemployment|inflation|crime|birth|base|"
            r"key) rate (?:in|of)|deals on|charts)\b",
            r"\b(?:ounce|barrel|gram|kilo|litre|liter|gallon) of (?:gold|silver|oil|petrol|gas|"
            r"diesel)\b",
            rf"\b{_CURRENCY}\b.{{0,20}}\b(?:to|in|into|for|per|buys?|is|are|makes?)\b.{{0,12}}"
            rf"\b{_CURRENCY}\b",
            # Of the living: names stand as `name` here.
            r"\bhow old (?:is|are) (?:(?:the )?name|\w+)[?.!]*$|\b(?:is|are) name (?:alive|dead|"
            r"married|single|divorced|retired|engaged|dating|pregnant)\b|^who (?:is|are) name "
            r"(?:married|engaged|dating)|^where (?:does|do) name (?:live|work|play)\b",
            r"\bthe score\b|\b(?:is|are) (?:leading|winning|losing|playing|trending|coming)\b",
            r"\bprice of (?:a |one )?(?:bitcoin|btc|ethereum|gold|silver|oil|petrol|gas|diesel|"
            r"\w+coin)\b|\b(?:gold|oil|bitcoin) price\b",
            r"\b(?:one|a) bitcoin\b|\btrading at\b|\b(?:mortgage|interest|"
            r"exchange) rates?\b(?=.*\b(?:of|from|between|to)\b|[?.!]*$)",
            r"\bnear(?:by| me| here|est)\b|\baround here\b|\bopen now\b|\bin stock\b|"
            r"\bon sale\b|\bavailable\b(?! in)",
            r"\b(?:is|are) (?:the )?(?:\w+ ){1,4}(?:open|closed|down|up|on time|delayed|"
            r"blocked|free|out|healthy|green|online|running)[?.!]*$",
            r"\b(?:on call|out of office)\b|\bwhich platform\b|\bwhat platform\b|\bany news\b|"
            r"\bnews (?:on|about)\b",
            r"^who is (?:the )?(?:\w+ )?(?:ceo|president|prime minister|chancellor|mayor|king|"
            r"queen|pope|champion|richest|head|coach|captain|owner|leader|governor|secretary|"
            r"minister|director|chair\w*|speaker|host|manager|world champion)\b(?! (?:in|"
            r"of) (?:greek|norse|roman))",
            r"^who (?:runs|leads|owns|heads|coaches|manages|governs|holds|hosts)\b|"
            r"\bhow many (?:followers|subscribers|users|employees|members|people (?:live|work|"
            r"are))\b",
            r"\b(?:pound|euro|dollar|yen|franc|rupee|krona|peso|yuan|lira)s? (?:worth )?(?:in|"
            r"to|into|against) (?:the )?(?:\w+ )?(?:pound|euro|dollar|yen|franc|rupee|krona|"
            r"peso|yuan|lira)s?\b",
            r"^(?:is|did|will|has) .*\b(?:win|won|score|scored|lose|lost|go up|go down|ship|"
            r"shipped|arrive|arrived|released?)[?.!]*$",
            r"\b(?:seats|tickets|rooms|places|tables|flights) (?:are )?(?:left|available|"
            r"free)\b|\bsigned up\b",
        ),
        unless=any_of(
            _SEASON.pattern,
            r"\bthe first\b|\b(?:difference|define|what is an? |what does|meaning)\b|"
            r"\bwhat is (?:live|the stock market)\b",
        ),
    ),
    Sign(
        "personal",
        "its answer is about this one person",
        any_of(
            r"\b(?:am i|was i|did i|have i|where did i|who am i|where am i|when (?:did|do|am|"
            r"was) i|do i owe|i owe)\b",
            r"\bdo i have (?:any|left|to pay|new|an? (?:meeting|appointment))\b|\b(?:how many|"
            r"how much|what) .*\b(?:do|did|have|has) i (?:have|left|spend|spent|pay|owe|eat|"
            r"run|save|order|get|earn)\b",
            r"\b(?:left on|remaining on) my\b|\bhow did i\b",
            r"^(?:what|when|where|who|which|how (?:much|many|old|far)) (?:is|are|was|were|will|"
            r"did|has|have) (?:on |in )?(?:my|our|mum|mom|dad)\b",
            r"^(?:has|did|was|will|is|are|have|were) (?:my|our)\b|^why (?:was|did|were|has|"
            r"had) (?:my|our|i|we)\b",
            r"\b(?:of|did|has|have|on|in|with) (?:my|our) (?:\w+ )?(?:team|tasks|orders?|"
            r"account|calendar|agenda|customers|tickets|invoices|inbox|cart|basket|list|"
            r"company|subscription|plan)\b",
            r"^(?:show|list|read|check|give|find|get|open) (?:me )?my\b|^(?:are|were) (?:we|"
            r"i)\b|\bour (?:revenue|error rate|customers|sales|churn|server|cluster)\b",
            r"\bmy (?:name|account|balance|order|parcel|package|luggage|blood type|ip address|"
            r"heart rate|first (?:meeting|question)|delivery address|agenda|calendar|"
            r"subscription|invoices?|refund|payment|inbox|password is)\b",
            r"\b(?:did|does|do|is|are|was|were|has|have|with) our\b(?! (?:solar|planet|sun|"
            r"galaxy|bod|brain|ancestors|eyes|dna|world|moon|universe))",
            r"^(?:mum|mom|dad|my wife|my husband)\b|\bdo you (?:have(?! to)|like|love|want|"
            r"feel|know me)\b",
        ),
        unless=re.compile(r"\bif (?:i|a|an|the|my)\b|\bcommand\b"),
    ),
    Sign(
        "action",
        "it asks that something be done, not answered",
        any_of(
            r"^(?:please )?(?:cancel|order|reorder|book|reserve|call|phone|dial|text|email|"
            r"mail|reply|forward|remind|"
            r"wake|turn (?:on|off|up|down|the|it)|switch|play|pause|resume|skip|lock|unlock|"
            r"deploy|restart|reboot|"
            r"schedule|reschedule|navigate|upgrade|downgrade|unsubscribe|subscribe|buy|"
            r"purchase|pay|transfer|return|"
            r"refund|ship|track|post|publish|mute|unmute|message|ping|notify|invite|assign|"
            r"close the|merge|approve|"
            r"log me|sign me|check whether|check if|dim|raise|archive|renew|download|share|"
            r"decline|block|retry|shuffle)\b"
            r"(?! (?:vs|versus|or|quoted|recipe)\b)",
            r"^(?:kill|stop|start|enable|disable|install|uninstall|put|move|run|print|"
            r"roll back|scale|replace|sort) (?:the|my|our|it|them|all)\b(?! (?:following|list|"
            r"numbers?|letters?|word)\b)",
            r"^set (?:a |an |the |my )?(?:timer|alarm|reminder|temperature|volume|thermostat)\b",
            r"^send (?:an?|the|my|this|it|him|her|them|me)\b|^(?:add|remove) .*\b(?:to|"
            r"from) (?:my|the|our) (?:\w+ )?(?:list|cart|basket|calendar|order|queue|playlist)\b",
            r"^(?:delete|change|update|save|rename|move|mark|read|open|close) (?:me )?(?:my|"
            r"all of|the last|our)\b",
            r"^create (?:a|an|the|me) (?:\w+ )?(?:ticket|issue|event|meeting|reminder|"
            r"account)\b|^let us\b|^let['’]s\b",
            r"^(?:show|give) (?:me )?the (?:logs?|status|dashboard)\b",
        ),
        unless=_CODE,
    ),
    Sign(
        "chance",
        "it asks for another answer each time",
        any_of(
            r"^(?:roll|flip|toss|throw|draw) (?:a|an|the|two)\b|\bat random\b|\bsurprise me\b|"
            r"\bguess (?:what|the|my|a|which)\b",
            r"^(?:pick|choose|select) (?:a|an|one|any)\b|^(?:generate|give|tell|pick|"
            r"choose) .*\brandom\b",
            r"\bi have not (?:heard|seen|read|tried)\b|\b(?:a|something) (?:new|"
            r"different) (?:joke|one|version)\b",
        ),
        unless=_CODE,
    ),
    Sign(
        "assistant",
        "it is about the assistant itself",
        any_of(
            r"^(?:who|what|how|where) (?:are|can|do) you\b(?! (?:call|say|get|make|do (?:if|"
            r"when|with|in|after)))|^what (?:\w+ )?model are you\b|^what can you do\b|^(?:what|"
            r"which) \w+ (?:do|can|are|did) you\b(?! (?:get|call|need|say|use))|"
            r"^can you (?:hear|see)\b|^who made you\b",
            r"\bwhere are you from\b|^are you\b|\bam i talking\b|^do you (?:like|love|think|"
            r"feel|remember|want)\b",
            r"\bwould you (?:pick|choose|prefer|recommend)\b|^i am (?:bored|sad|back|done|here|"
            r"tired)[.!]*$",
        ),
        in_how_to=True,
        unless=re.compile(
            r"^(?:what|how) do you (?:call|say|get|make|spell|pronounce|cook|tell|use|find|do)\b"
        ),
    ),
)
"""In the order in which a reason is given."""
