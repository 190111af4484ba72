/* The job board with several games at once, and the public queue of transactions (docs/SPEC.md, sections 10 and 11).
 *
 * One job of two heads. Game 0 is for the honest challenger, who computes the truth; the others are for somebody else,
 * who may be an independent challenger (`computes`) or a mirror: it plays the same game beside the honest one and copies
 * whatever it sees, in the queue or in a block. The trainer is honest (true heads, in time) or plays anything the rules
 * allow, also with the mirror; the client abandons whenever it may. A game is cut down to three moves, of which game.pml
 * says that they decide: the defender's, the challenger's last selection with its seal, and the proof.
 *
 * A tick is a block: what happens between two ticks is in one block, in any order that whoever builds it likes. A
 * transaction of an honest party comes into a block before its maker's clock, or the window, is over; its proof, from the
 * block in which it is first seen, within DELAY blocks. A proof waits for WAIT blocks after its seal.
 */

#ifndef GAMES
#define GAMES 2             /* the honest challenger's, and GAMES - 1 others */
#endif
#ifndef CLOCK
#define CLOCK 2
#endif
#ifdef MUTANT_NO_WAIT
#define WAIT 1              /* a proof in the block after its seal's */
#else
#define WAIT CLOCK
#endif
#ifndef DELAY
#define DELAY (CLOCK - 1)   /* blocks for which the builders may leave out a proof that they have seen */
#endif
#define WINDOW 2
#define REPLAY 2            /* blocks in which the honest challenger replays a segment, from when its head is posted */
#define AUDIT 2             /* auditTime, for each segment of a posted head */
#define DEADLINE 3          /* for the final head, after the acceptance */
#define LAST 2              /* count of the final head */
#define REWARD 5
#define TRAINER_STAKE 3     /* odd: half is rounded down */
#define CHALLENGER_STAKE 2

mtype:status = { OFFERED, ACTIVE, CANCELLED, SETTLED, SLASHED, ABANDONED, PARTED };
mtype:phase = { NONE, OPEN, SELECT, PROVE, OVER };
mtype:verdict = { NO_VERDICT, DEFENDER_LOST, CHALLENGER_LOST, VOID };
/* What a seal fixes. COPY: the honest challenger's own, sent again for another game. */
mtype:seal = { NO_SEAL, RIGHT, WRONG, COPY };

typedef Game {
    mtype:phase phase;
    mtype:verdict verdict;
    mtype:seal seal;
    bool isFalse;           /* the head that it disputes is */
    byte stake;             /* doubled for each game that was open when it started */
    byte defenderRest, challengerRest, elapsed
}

#define CLIENT  0
#define TRAINER 1
#define HONEST  2
#define ANYONE  3
#define BURNED  4

mtype:status status = OFFERED;
byte headCount, age, since, openGames;  /* age: ticks since the last progress; since: since the acceptance */
byte audit;                         /* ticks until auditEnd, and one more: 0 once that is past */
byte busy;                          /* ticks until the honest challenger has replayed what is posted */
Game games[GAMES];
byte credit[5], balance;

bool trainerHonest, computes;
byte falseHeads;                    /* bit c: the head of count c that the trainer signs is false */
bool twoHeads;                      /* it signed two that contradict each other */
bool logged, clientHonest;
byte shown = LAST;                  /* the logs of heads up to this count can be had */
byte receipts;                      /* the client has signed for the logs up to this head */
byte forbidden;                     /* the segment, if any, whose losses the job forbids: it demands finite ones */
bool trained = true;                /* an honest trainer has had a block for its next segment, since it may compute it */
bool published;                     /* the honest challenger's proof, with answer and salt, is in the queue */
byte pendingFor;                    /* ticks for which it has been */
byte payouts;                       /* how often the job's money was given out */

/* ------------------------------------------------------------------ money */

#define isStaked(g)     (games[g].phase != NONE && games[g].verdict == NO_VERDICT -> games[g].stake : 0)
#ifdef MUTANT_FLAT_REFUND
#define stakeOf(g)      CHALLENGER_STAKE
#else
#define stakeOf(g)      games[g].stake
#endif
#if GAMES == 2
#define gameStakes      (isStaked(0) + isStaked(1))
#else
#define gameStakes      (isStaked(0) + isStaked(1) + isStaked(2))
#endif
#define held            ((status == OFFERED || status == ACTIVE -> REWARD : 0) + (status == ACTIVE -> TRAINER_STAKE : 0) + gameStakes)
#define credits         (credit[CLIENT] + credit[TRAINER] + credit[HONEST] + credit[ANYONE] + credit[BURNED])

/* What the board has is what it holds and owes, after every transaction; the count of open games is right. */
#define isOpen(g)       (games[g].phase != NONE && games[g].verdict == NO_VERDICT -> 1 : 0)
#if GAMES == 2
#define gamesOpen       (isOpen(0) + isOpen(1))
#else
#define gamesOpen       (isOpen(0) + isOpen(1) + isOpen(2))
#endif
inline audited() {
    assert(balance == held + credits);
    assert(openGames == gamesOpen)
}

inline pays(amount) {
    balance = balance + amount
}

/* The job's end: once, whatever it is. */
inline close(how) {
    payouts++;
    assert(payouts == 1);
    status = how
}

inline slash(prover) {
    assert(!trainerHonest);
#ifdef MUTANT_SLASH_TWICE
    skip;
#else
    close(SLASHED);
#endif
    credit[CLIENT] = credit[CLIENT] + REWARD;
    credit[prover] = credit[prover] + TRAINER_STAKE / 2;
    credit[BURNED] = credit[BURNED] + TRAINER_STAKE - TRAINER_STAKE / 2
}

/* ------------------------------------------------------------------ games */

#define owner(g)        ((g) == 0 -> HONEST : ANYONE)
#define live(g, ph)     (status == ACTIVE && games[g].phase == ph && games[g].elapsed <= rest(g))
#define rest(g)         (games[g].phase == OPEN -> games[g].defenderRest : games[g].challengerRest + (games[g].phase == PROVE -> WAIT : 0))
#define isTimedOut(g)   (games[g].elapsed > rest(g))
#define isRunning(g)    (games[g].phase == OPEN || games[g].phase == SELECT || games[g].phase == PROVE)

inline judged(g, how) {
    assert(games[g].verdict == NO_VERDICT && isRunning(g));
    /* An honest challenger never loses. */
    assert((g) != 0 || how != CHALLENGER_LOST);
    games[g].verdict = how;
    games[g].phase = OVER;
    games[g].isFalse = false; games[g].elapsed = 0; games[g].defenderRest = 0; games[g].challengerRest = 0; games[g].seal = NO_SEAL;
    openGames--
}

inline convicted(g) {
    judged(g, DEFENDER_LOST);
    credit[owner(g)] = credit[owner(g)] + stakeOf(g);
    slash(owner(g))
}

inline defended(g) {
    judged(g, CHALLENGER_LOST);
    credit[TRAINER] = credit[TRAINER] + stakeOf(g) / 2;
    credit[BURNED] = credit[BURNED] + stakeOf(g) - stakeOf(g) / 2
}

inline moved(g, ph) {
    if
    :: games[g].phase == OPEN -> games[g].defenderRest = games[g].defenderRest - games[g].elapsed
    :: else -> games[g].challengerRest = games[g].challengerRest - games[g].elapsed
    fi;
    games[g].elapsed = 0;
    games[g].phase = ph
}

#define isFalseHead(c)  ((falseHeads >> (c)) & 1)
#ifdef MUTANT_NO_AUDIT_TIME
#define isOpenAt(a, s)  ((a) <= WINDOW)
#else
#define isOpenAt(a, s)  ((a) <= WINDOW || (s) > 0)
#endif
#define mayChallenge(g) (status == ACTIVE && games[g].phase == NONE && isOpenAt(age, audit))
#define hasLogs(c)      (shown >= (c))
/* The honest challenger disputes a head only when it has replayed the run. */
#define mayAudit        (mayChallenge(0) && busy == 0)

#ifdef MUTANT_AUDIT_ONCE
#define AUDIT_AT_FIRST  (LAST * AUDIT)  /* of the whole run, and counts from the acceptance */
#define AUDIT_OF_HEAD   0
#else
#define AUDIT_AT_FIRST  0
#define AUDIT_OF_HEAD   AUDIT
#endif
inline accept() {
    pays(TRAINER_STAKE);
    status = ACTIVE;
    age = 0;
    since = 0;
    audit = 1 + AUDIT_AT_FIRST
}

#ifdef MUTANT_NO_DEADLINE
#define isLate          (age > WINDOW)
#else
#define isLate          (age > WINDOW || since > DEADLINE)
#endif
inline post() {
    /* The trainer may have started the game over which nobody can abandon the job: it buys no time for a head. */
    assert(!isLate);
    headCount++;
    age = 0;
    audit = (audit > 0 -> audit : 1) + AUDIT_OF_HEAD;
    busy = busy + REPLAY
}

inline challenge(g, count) {
    games[g].stake = CHALLENGER_STAKE << openGames;
    pays(games[g].stake);
    openGames++;
    games[g].phase = OPEN;
    games[g].isFalse = isFalseHead(count);
    games[g].defenderRest = CLOCK;
    games[g].challengerRest = CLOCK;
    games[g].elapsed = 0
}

#ifdef MUTANT_SAME_INSTANT
#define isLater(g)      true
#else
#define isLater(g)      (games[g].elapsed >= WAIT)
#endif
#if defined(MUTANT_NO_SEAL)
#define knowsAnswer     (computes || published)
#define isSealed(g)     knowsAnswer
#elif defined(MUTANT_SEAL_WITHOUT_GAME)
#define isSealed(g)     (games[g].seal == RIGHT || (games[g].seal == COPY && published))
#else
#define isSealed(g)     (games[g].seal == RIGHT)
#endif

/* ------------------------------------------------------------------ time */

/* A false head that was posted, no game of the honest challenger yet. */
#define mustChallenge   (games[0].phase == NONE && ((headCount >= 1 && isFalseHead(1) && hasLogs(1)) || (headCount >= 2 && isFalseHead(2) && hasLogs(2))))
#ifdef MUTANT_LATE_HEADS
#define isInTime        true
#else
#define isInTime        (!isLate)
#endif
/* A trainer of policy `logged` goes one head ahead of the receipts, and signs no head that commits to a forbidden loss. */
#define isForbidden(c)  (forbidden > 0 && forbidden <= (c))
#define mayPost         (headCount < LAST && isInTime && (!trainerHonest || !logged || (headCount <= receipts && trained && !isForbidden(headCount + 1))))
#define mustPost        (trainerHonest && mayPost)
#define mustSign        (clientHonest && logged && status == ACTIVE && receipts < headCount && hasLogs(headCount))
#define mustProve       (published && games[0].phase == PROVE && pendingFor >= DELAY)
#define mustOpen(g)     (trainerHonest && games[g].phase == OPEN && games[g].elapsed >= games[g].defenderRest)
#define isHonestReady   (games[0].phase == SELECT || (games[0].phase == PROVE && isLater(0)))
#define mustAnswer      (isHonestReady && games[0].elapsed + 1 > rest(0))
#define isLastCall      (isOpenAt(age, audit) && !isOpenAt(age + 1, audit - 1))
#define isLastPost      (age == WINDOW || since == DEADLINE)
#ifdef MUTANT_ABANDON_OVER_GAMES
#define noGamesLeft     true
#else
#define noGamesLeft     (openGames == 0)
#endif
#ifdef MUTANT_ABANDON_LOGGED
#define mayAbandon      (!logged || receipts == headCount)
#else
#define mayAbandon      (!logged || headCount == 0)
#endif
#ifdef MUTANT_PART_OVER_GAMES
#define noGamesToPart   true
#else
#define noGamesToPart   (openGames == 0)
#endif
#ifdef MUTANT_PART_EARLY
#define isOverToPart    true
#else
#define isOverToPart    !isOpenAt(age, audit)
#endif
#define mayPart         (status == ACTIVE && logged && headCount > 0 && receipts < LAST && noGamesToPart)
#ifdef MUTANT_NO_PART_AT_FIRST
#define mayPartAtFirst  false
#else
#define mayPartAtFirst  (status == ACTIVE && forbidden > 0 && headCount == 0 && !isLate && noGamesToPart)
#endif
#define isClientsTime   (headCount < LAST && since > DEADLINE)
/* A client that looks after its reward lets no block pass in which it may end a job that is late. */
#define mustAbandon     (headCount < LAST && isLate && mayAbandon && noGamesLeft)
#define mustPart        (mayPart && (isOverToPart || isClientsTime))
#define mustReport      isForbidden(headCount)
#define mustPartAtFirst (isLastPost && trainerHonest && mayPartAtFirst && isForbidden(1))
#define isDue           (status == ACTIVE && ((isLastCall && mayAudit && mustChallenge) || (isLastPost && mustPost) || mustProve || mustAnswer || mustAbandon || mustPart || mustReport || mustPartAtFirst))

#define runs(g)         (isRunning(g) && !isTimedOut(g))
#if GAMES == 2
#define anyMustOpen     (mustOpen(0) || mustOpen(1))
#define anyRuns         (runs(0) || runs(1))
#else
#define anyMustOpen     (mustOpen(0) || mustOpen(1) || mustOpen(2))
#define anyRuns         (runs(0) || runs(1) || runs(2))
#endif
/* Time has an effect still: a window or a clock is running. */
#define mayTick         (status == ACTIVE && (age <= WINDOW || since <= DEADLINE + 1 || audit > 0 || anyRuns) && !isDue && !mustSign && !anyMustOpen)

inline tick() {
    if
    :: headCount <= receipts -> trained = true
    :: else
    fi;
    if
    :: age <= WINDOW -> age++
    :: else
    fi;
    if
    :: since <= DEADLINE + 1 -> since++
    :: else
    fi;
    if
    :: audit > 0 -> audit--
    :: else
    fi;
    if
    :: busy > 0 -> busy--
    :: else
    fi;
    /* Heads that come one at a window do not hold the reward beyond the deadline. */
    assert(headCount == LAST || openGames > 0 || since <= DEADLINE + 1);
    if
    :: published && pendingFor < DELAY -> pendingFor++
    :: else
    fi;
    g = 0;
    do
    :: g < GAMES && runs(g) -> games[g].elapsed++; g++
    :: g < GAMES && !runs(g) -> g++
    :: g == GAMES -> break
    od;
    g = 0
}

/* ------------------------------------------------------------------ the parties */

#ifdef MUTANT_SETTLE_OVER_GAMES
#define noGames         true
#else
#define noGames         (openGames == 0)
#endif
#ifdef MUTANT_SETTLE_WITHOUT_RECEIPT
#define isReceipted     true
#else
#define isReceipted     (!logged || receipts == LAST)
#endif
/* No receipt stands for a false head, if its client signs for logs only. */
#define isPaidForLies   (clientHonest && ((receipts >= 1 && isFalseHead(1)) || (receipts >= 2 && isFalseHead(2))))

inline partWays() {
    /* An honest trainer has computed one segment without a receipt. An honest client keeps no receipt back: then the
     * trainer has come to a loss that it must not sign. */
    assert(!trainerHonest || (headCount <= receipts + 1 && (!clientHonest || isForbidden(headCount + 1))));
    close(PARTED);
    credit[TRAINER] = credit[TRAINER] + TRAINER_STAKE + REWARD * receipts / LAST;
    credit[CLIENT] = credit[CLIENT] + REWARD - REWARD * receipts / LAST
}

#ifdef MUTANT_SETTLE_EARLY
#define isWindowOver    !isOpenAt(age + 1, audit - 1)
#else
#define isWindowOver    !isOpenAt(age, audit)
#endif
#ifdef MUTANT_RECLAIM_TWICE
#define mayReclaim(g)   (status == SLASHED && games[g].phase != NONE && games[g].verdict != DEFENDER_LOST && payouts < 3)
#else
#define mayReclaim(g)   (status == SLASHED && isRunning(g))
#endif
#define isEnded         (status != OFFERED && status != ACTIVE && openGames == 0)

/* Moves that a game's two sides make, and what anybody may do for it. */
inline plays(g) {
    if
    :: live(g, OPEN) -> moved(g, SELECT)
    :: live(g, OPEN) && !trainerHonest -> convicted(g)                  /* it concedes */
    :: live(g, SELECT) && (g) == 0 -> games[g].seal = RIGHT; moved(g, PROVE)
    :: live(g, SELECT) && (g) != 0 && (computes || published) -> games[g].seal = RIGHT; moved(g, PROVE)
    :: live(g, SELECT) && (g) != 0 -> games[g].seal = WRONG; moved(g, PROVE)
    :: live(g, SELECT) && (g) != 0 && games[0].seal != NO_SEAL -> games[g].seal = COPY; moved(g, PROVE)
    :: (live(g, SELECT) || live(g, PROVE)) && (g) != 0 -> defended(g)   /* it concedes */
    :: live(g, PROVE) && (g) == 0 && isLater(g) && !published -> published = true
    :: live(g, PROVE) && isLater(g) && isSealed(g) && ((g) != 0 || published) ->
        if
        :: games[g].isFalse ->
            /* The reward for a proof is never a mirror's. */
            assert((g) == 0 || computes);
            convicted(g)
        :: else -> defended(g)
        fi
    :: status == ACTIVE && isRunning(g) && isTimedOut(g) ->
        if
        :: games[g].phase == OPEN -> convicted(g)
        :: else -> defended(g)
        fi
    :: mayReclaim(g) ->
#ifdef MUTANT_RECLAIM_TWICE
        payouts++;
#else
        judged(g, VOID);
#endif
        credit[owner(g)] = credit[owner(g)] + stakeOf(g)
    fi
}
#define mayPlay(g)      (live(g, OPEN) || live(g, SELECT) || (live(g, PROVE) && ((g) != 0 || (isLater(g) && (!published || isSealed(g))))) \
                         || (status == ACTIVE && isRunning(g) && isTimedOut(g)) || mayReclaim(g))

active proctype Board() {
    byte g;

    atomic {
        pays(REWARD);       /* the client has made its offer */
        g = 0;
        do
        :: g < GAMES -> games[g].phase = NONE; games[g].verdict = NO_VERDICT; games[g].seal = NO_SEAL; g++
        :: else -> break
        od;
        g = 0;
        if
        :: trainerHonest = true
        :: trainerHonest = false;
            if
            :: falseHeads = 0 :: falseHeads = 2 :: falseHeads = 4 :: falseHeads = 6
            fi;
            if
            :: twoHeads = false :: twoHeads = true
            fi;
#ifdef LOGGED
            if
            :: shown = 0 :: shown = 1 :: shown = 2
            fi
#endif
        fi;
#ifdef LOGGED
        logged = true;
        if
        :: clientHonest = false :: clientHonest = true
        fi;
#ifdef FINITE_LOSSES
        if
        :: forbidden = 0 :: forbidden = 1 :: forbidden = 2
        fi;
#endif
#endif
        if
        :: computes = false :: computes = true
        fi
    }
    do
    :: atomic { status == OFFERED -> credit[CLIENT] = credit[CLIENT] + REWARD; close(CANCELLED); audited() }
    :: atomic { status == OFFERED -> accept(); audited() }
    :: atomic { status == ACTIVE && mayPost -> post(); trained = !logged; audited() }
    /* An honest client signs for logs that it has; another one for any head, and when it likes. */
    :: atomic { status == ACTIVE && logged && receipts < headCount && (!clientHonest || hasLogs(headCount)) ->
        receipts = headCount; audited() }
    :: atomic { mayPart && isOverToPart -> assert(!isPaidForLies); partWays(); audited() }
    /* The trainer's choice alone, in a job that demands finite losses, until it could be abandoned. */
    :: atomic { mayPartAtFirst && (!trainerHonest || isForbidden(1)) -> partWays(); audited() }
    /* The record of a forbidden loss convicts, whoever opens it, with a game open or not. */
    :: atomic { status == ACTIVE && forbidden > 0 && (!trainerHonest || isForbidden(headCount)) -> slash(ANYONE); audited() }
    /* The client's own choice: it parts before the last head's window is over. */
    :: atomic { mayPart && isClientsTime -> partWays(); audited() }
    :: atomic { status == ACTIVE && twoHeads -> slash(ANYONE); audited() }
    /* The honest challenger disputes a false head that was posted; others any that was posted, or handed to them. */
    :: atomic { mayAudit && headCount >= 1 && isFalseHead(1) && hasLogs(1) -> challenge(0, 1); audited() }
    :: atomic { mayAudit && headCount >= 2 && isFalseHead(2) && hasLogs(2) -> challenge(0, 2); audited() }
    :: atomic { mayChallenge(1) && (headCount >= 1 || !trainerHonest) -> challenge(1, 1); audited() }
    :: atomic { mayChallenge(1) && (headCount >= 2 || !trainerHonest) -> challenge(1, 2); audited() }
    :: atomic { mayPlay(0) -> plays(0); audited() }
    :: atomic { mayPlay(1) -> plays(1); audited() }
#if GAMES > 2       /* the two others are alike, so the order of their beginnings is no loss */
    :: atomic { mayChallenge(2) && games[1].phase != NONE && (headCount >= 1 || !trainerHonest) -> challenge(2, 1); audited() }
    :: atomic { mayChallenge(2) && games[1].phase != NONE && (headCount >= 2 || !trainerHonest) -> challenge(2, 2); audited() }
    :: atomic { mayPlay(2) -> plays(2); audited() }
#endif
    :: atomic { status == ACTIVE && headCount == LAST && isReceipted && isWindowOver && noGames ->
        /* No false head is ever paid for while somebody honest looks, and the client asks for the logs. */
        assert(falseHeads == 0 || (logged && !clientHonest));
        assert(!isForbidden(LAST));
        close(SETTLED);
        credit[TRAINER] = credit[TRAINER] + REWARD + TRAINER_STAKE;
        audited() }
    :: atomic { status == ACTIVE && headCount < LAST && isLate && mayAbandon && noGamesLeft ->
        /* An honest trainer is in time with its heads. */
        assert(!trainerHonest);
        close(ABANDONED);
        credit[CLIENT] = credit[CLIENT] + REWARD + TRAINER_STAKE;
        audited() }
    :: atomic { credit[ANYONE] > 0 ->
        balance = balance - credit[ANYONE];
#ifndef MUTANT_WITHDRAW_TWICE
        credit[ANYONE] = 0;
#endif
        audited() }
    :: d_step { mayTick -> tick() }
    :: isEnded && credit[ANYONE] == 0 -> break
    od;
#ifdef WITNESS
    assert(!(WITNESS));
#endif
    /* Everybody has what the rules promise: an honest trainer its pay and every stake put against it, ... */
    assert(!trainerHonest || status == CANCELLED
           || (status == SETTLED && credit[TRAINER] >= REWARD + TRAINER_STAKE && credit[CLIENT] == 0)
           || (status == PARTED && credit[TRAINER] >= TRAINER_STAKE + REWARD * receipts / LAST));
    /* ... an honest challenger its stake, and its share of the trainer's where it was the one who proved the lie. */
    assert(games[0].verdict == NO_VERDICT || credit[HONEST] >= games[0].stake);
    assert(games[0].verdict != DEFENDER_LOST || credit[HONEST] == games[0].stake + TRAINER_STAKE / 2);
    assert(games[0].phase == NONE || status == SLASHED)
}

/* Every job ends, and every stake is given out: no run stays in a job for ever. */
ltl ends { <> isEnded }
