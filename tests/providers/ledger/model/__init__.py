"""A model checker for one ledger: it explores every order in which the ledger's messages can meet.

The model runs the real cores: `AppendCore`, `RecoveryCore` and the changes of the record. A bookie
is reduced to its promises, and the row store to one compare-and-set step. From a state, the
explorer takes every possible move: a bookie acts on a message, an answer arrives, somebody stops
waiting, a bookie fails, returns or is restored from an older copy, an entry is damaged, or another
process takes the ledger over. `explorer` skips the states that it has seen, and `judging` checks
every new state.

    cores      the real cores by number: equal cores share a number, and each step runs once
    world      a state, and the effect of messages on bookies and rows
    actors     a writer and recoveries, between the cores and the messages
    moves      the moves that are possible in a state
    judging    the invariants that must hold in every state
    explorer   breadth-first search, with the path to a violation
    shapes     the explored configurations

The exploration is bounded. Within its bounds it misses nothing, for these reasons:

- `Bounds` limits the entries, appends, recoveries and faults. A recovery makes one attempt. A
  second attempt counts as another recovery, while the first one does nothing more.
- The sender of a message may stop waiting for its answer. In some orders a bookie acts on the
  message later, which models late messages and those of zombie writers. In others no bookie ever
  acts on it, which models a lost message.
- A crashed bookie acts on no message that is under way. Nobody knows of its data that was not on
  disk, because a bookie answers only when the data is durable (the tests of the bookie check
  this). So a bookie acts on a message in one step.
- Symmetry: while no bookie was replaced and every entry is on all places, all places are alike.
  States that differ only in the order of places are the same state, because the decisions of the
  cores and the invariants are symmetric, too. With striping or after a replacement, the explorer
  merges no states.
- A lone recovery receives an answer as soon as the bookie gives it. Compare an answer given at
  time A and received at B with one given only at B. In the second case the bookie is not fenced
  between A and B and can do all that a fenced bookie can, and more. Its answer is the same,
  because nobody else writes in the recovery's term. With two recoveries, one can fence the bookie
  against the other in between, so answers arrive late there.
- Once the ledger is closed, its recoveries end: `closed` refuses changes, and further writes only
  add copies. The writer continues.
- The model drops answers to an actor that has ended, but not the messages of that actor.

Shapes that are `prompt` deliver all answers at once. They find faults but prove less. Random walks
cover larger numbers (`tests/providers/ledger/protocol_world.py`).
"""
