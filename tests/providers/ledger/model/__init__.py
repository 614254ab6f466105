"""Every order in which the messages of one ledger can meet: the protocol's cores, explored.

The cores are the real ones (`AppendCore`, `RecoveryCore`, the changes of the record); a bookie is
what a bookie promises, the row store is one compare-and-set step. From one state every move is
taken: a message is acted on, an answer arrives, somebody gives up waiting, a bookie goes, comes
back, is restored from an older copy, an entry is damaged, another one takes the ledger over.
States that were seen are not looked at again (`explorer`), every new one is judged (`judging`).

    cores      the real cores by number: equal ones are one, a step of one is taken once
    world      what a state is, and what bookies and rows make of a message
    actors     a writer and those who recover, between cores and messages
    moves      what can happen next
    judging    what must hold in every state (spec/ledger.md 4.30 to 4.34, I1, I4 to I18)
    explorer   breadth first, with the way to whatever does not hold
    shapes     what is explored, and how long it takes

What bounds it, and why nothing is missed within the bounds:

- Entries, appends, those who recover, and troubles have a number each (`Bounds`). One who recovers
  makes one attempt: a second one of his is another one who recovers, while he does nothing more.
- A lost message is one that is never acted on, and somebody who gave up waiting for it. It may
  still be acted on later: that is a late one, or that of a zombie. So nothing is said to be lost.
- A bookie that crashes is one that acts on nothing that is under way. What it had not on disk
  nobody was told of: a bookie answers once it is durable, which the tests of the bookie show. So a
  message is acted on in one step.
- Symmetry: as long as no bookie was replaced, and every entry is on all places, places are alike:
  states that differ by their order only are one. Every decision of the cores, and all that is
  judged, is the same under it. With striping, and after a change, nothing is taken together.
- One who recovers alone hears an answer as soon as it is given. Let it be given at A and heard at
  B: were it given only at B, its bookie would not be fenced between the two, and could do all that
  a fenced one can, and more; what it answers is the same, as nobody else writes in his term. With
  two who recover, one could be fenced by the other in between, so answers are late there.
- Once the ledger has an end, those who recover are let go of: `closed` refuses what they would
  store, and what they write is more copies. The writer goes on.
- An answer to somebody who has ended is dropped; what they sent is not.

What is left out, and said in the table: in shapes that are `prompt` all answers are heard as soon
as they are given. Those show faults, and prove less. Larger numbers are for walks of chance
(`tests/providers/ledger/protocol_world.py`).
"""
