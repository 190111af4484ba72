/* Games that are open at once against an honest trainer with one machine (docs/SPEC.md, section 11;
 * docs/decisions/stakes-and-economics.md).
 *
 * The challengers are anybody: they start games, ask for replays in any of them, and concede or fall silent at any time,
 * also while the trainer is replaying. The trainer replays first come, first served, and drops the replay of a game that
 * is over. A tick is half a replay. The trainer has no clock at all here: what a replay takes must be in its allowance,
 * for the clock is for the blocks that a move takes (game.pml).
 */

#ifndef GAMES
#define GAMES 3             /* that can be open at once */
#endif
#ifndef SERIES
#define SERIES 5            /* that can be started in all */
#endif
#ifndef REPLAYS
#define REPLAYS 2           /* moves of a game that need one */
#endif
#define REPLAY 2
#define NOBODY GAMES

/* ASKED: the trainer's move is due. WAITING: the challenger's is, or its silence lasts. */
mtype:phase = { FREE, WAITING, ASKED };

typedef Game {
    mtype:phase phase;
    byte replays, elapsed;
#ifdef MUTANT_CROWD_AT_START
    byte crowd
#endif
}

Game games[GAMES];
byte started, open, crowd;
byte working = NOBODY, left;        /* the game whose replay is under way, and its ticks; `left` may outlive the game */
chan queue = [GAMES] of { byte };   /* the others that wait for one, in the order in which they were asked for */
bool waitedForAll, dropped, fell;   /* outcomes, for the witnesses */
byte g;

#if defined(MUTANT_FLAT_ALLOWANCE)
#define allowance(g)    REPLAY
#elif defined(MUTANT_CROWD_NOW)
#define allowance(g)    (REPLAY * open)
#elif defined(MUTANT_CROWD_AT_START)
#define allowance(g)    (REPLAY * games[g].crowd)
#else
#define allowance(g)    (REPLAY * crowd)
#endif

inline start(g) {
    if
#ifdef MUTANT_CROWD_FALLS
    :: true -> crowd = open + 1
#else
    :: open == 0 -> fell = fell || crowd == GAMES; crowd = 1
    :: open > 0 && open >= crowd -> crowd = open + 1
    :: else
#endif
    fi;
    open++;
    started++;
    games[g].phase = WAITING;
#ifdef MUTANT_CROWD_AT_START
    games[g].crowd = open;
#endif
    games[g].replays = 0
}

inline ask(g) {
    games[g].phase = ASKED;
    games[g].replays++;
    games[g].elapsed = 0;
    queue!g
}

/* The next replay: of whoever has waited longest. */
inline take() {
    if
    :: left == 0 && len(queue) > 0 ->
#ifdef MUTANT_ANY_ORDER
        g = 0;
        do
        :: g < GAMES - 1 -> queue?working; queue!working; g++
        :: break
        od;
        g = 0;
#endif
        queue?working;
        left = REPLAY
    :: else
    fi
}

inline finish(g) {
    if
    :: working == g ->
        dropped = true;
        working = NOBODY;
#ifndef MUTANT_REPLAYS_FOR_NOBODY
        left = 0;
#endif
    :: working != g && games[g].phase == ASKED -> queue??eval(g)
    :: else
    fi;
    games[g].phase = FREE;
    games[g].elapsed = 0;
    games[g].replays = 0;
    open--
}

inline tick() {
    take();
    g = 0;
    do
    :: g < GAMES ->
        if
        :: games[g].phase == ASKED -> games[g].elapsed++
        :: else
        fi;
        g++
    :: g == GAMES -> break
    od;
    g = 0;
    left--;
    if
    :: left == 0 && working != NOBODY ->
        /* The move is made. An honest trainer is in time, in every game at once, without any clock. */
        assert(games[working].elapsed <= allowance(working));
        waitedForAll = waitedForAll || games[working].elapsed == REPLAY * GAMES;
        games[working].phase = WAITING;
        games[working].elapsed = 0;
        working = NOBODY
    :: else
    fi
}

#define isBusy          (left > 0 || len(queue) > 0)
#define isEnded         (started == SERIES && open == 0)

inline plays(g) {
    if
    :: games[g].phase == FREE && started < SERIES -> start(g)
    :: games[g].phase == WAITING && games[g].replays < REPLAYS -> ask(g)
    :: games[g].phase != FREE -> finish(g)
    fi
}
#define mayPlay(g)      (games[g].phase != FREE || started < SERIES)

active proctype all() {
    d_step {
        do
        :: g < GAMES -> games[g].phase = FREE; g++
        :: g == GAMES -> break
        od;
        g = 0
    }
    do
    :: atomic { mayPlay(0) -> plays(0) }
    :: atomic { mayPlay(1) -> plays(1) }
#if GAMES > 2
    :: atomic { mayPlay(2) -> plays(2) }
#endif
#if GAMES > 3
    :: atomic { mayPlay(3) -> plays(3) }
#endif
    :: atomic { isBusy -> tick() }
    :: isEnded && !isBusy -> break
    od;
#ifdef WITNESS
    assert(!(WITNESS))
#endif
}

ltl ends { <> (isEnded && left == 0) }
