"""Games of Tic Tac Toe: a grain for each game and each player, and one that pairs players."""

from dataclasses import dataclass, replace

from millstream.runtime import Grain, grain

CELLS = 9
LINES = (
    *((0, 1, 2), (3, 4, 5), (6, 7, 8)),
    *((0, 3, 6), (1, 4, 7), (2, 5, 8)),
    *((0, 4, 8), (2, 4, 6)),
)
NAME_CHARS_MAX = 20
PLAYERS_WAITING_MAX = 1_000
GAMES_KEPT_MAX = 50


@dataclass(frozen=True)
class Board:
    """The state of a game.

    `cells` has nine characters: `X`, `O` or a blank. `players` has the name of X, then that of O.
    `winner` is a name, `draw`, or empty while the game goes on.
    """

    cells: str = " " * CELLS
    players: tuple[str, ...] = ()
    winner: str = ""

    @property
    def turn(self) -> str:
        """The name of the player who moves next; empty before the start and after the end."""
        if self.winner or len(self.players) < 2:
            return ""
        return self.players[(CELLS - self.cells.count(" ")) % 2]


@dataclass(frozen=True)
class Record:
    """The games of a player: the newest ones by key, and the results."""

    games: list[str]
    won: int = 0
    lost: int = 0
    drawn: int = 0


def join(board: Board, player: str) -> Board:
    """Return the board with one more player. Raises ValueError."""
    if player in board.players:
        return board
    if len(board.players) == 2:
        raise ValueError("the game has two players")
    return replace(board, players=(*board.players, player))


def play(board: Board, player: str, cell: int) -> Board:
    """Return the board after a move. Raises ValueError for a move that is not allowed."""
    if player != board.turn:
        raise ValueError(f"it is not the turn of {player}")
    if not 0 <= cell < CELLS or board.cells[cell] != " ":
        raise ValueError(f"cell {cell} is not free")
    sign = "XO"[board.players.index(player)]
    cells = board.cells[:cell] + sign + board.cells[cell + 1 :]
    if any(all(cells[at] == sign for at in line) for line in LINES):
        winner = player
    else:
        winner = "" if " " in cells else "draw"
    return replace(board, cells=cells, winner=winner)


@grain(name="TicTacToeGame")
class Game(Grain):
    """One game. It tells its players when it begins and how it ends."""

    def __init__(self) -> None:
        self._board = Board()

    async def join(self, player: str) -> Board:
        """Let a player join. Raises ValueError for a third one."""
        before, self._board = self._board, join(self._board, player)
        if self._board != before:
            await self.grain(Player, player).begin(self.key)
        return self._board

    async def play(self, player: str, cell: int) -> Board:
        """Make a move. Raises ValueError if it is not allowed."""
        self._board = play(self._board, player, cell)
        if self._board.winner:
            for name in self._board.players:
                await self.grain(Player, name).finish(self.key, self._board.winner)
        return self._board

    async def board(self) -> Board:
        """Return the state of the game."""
        return self._board

    def on_dehydrate(self) -> Board:
        """Take the board along to another silo."""
        return self._board

    def on_rehydrate(self, value: Board) -> None:
        """Continue with the board."""
        self._board = value


@grain(name="TicTacToePlayer")
class Player(Grain):
    """One player, and the results of the player's games."""

    def __init__(self) -> None:
        self._record = Record([])

    async def begin(self, game: str) -> None:
        """Note a game that the player has joined."""
        games = [*self._record.games, game][-GAMES_KEPT_MAX:]
        self._record = replace(self._record, games=games)

    async def finish(self, game: str, winner: str) -> None:
        """Note the result of a game."""
        record = self._record
        if winner == "draw":
            self._record = replace(record, drawn=record.drawn + 1)
        elif winner == self.key:
            self._record = replace(record, won=record.won + 1)
        else:
            self._record = replace(record, lost=record.lost + 1)

    async def record(self) -> Record:
        """Return games and results."""
        return self._record


@grain(name="TicTacToePairing")
class Pairing(Grain):
    """Pairs players who look for a game. One grain, with the key `all`, pairs everybody."""

    def __init__(self) -> None:
        self._waiting: dict[str, str] = {}  # game by player, the longest wait first
        self._count = 0

    async def find_game(self, player: str) -> str:
        """Return the key of a game for a player: that of a player who waits, or a new one.

        Raises ValueError if too many players wait.
        """
        if player in self._waiting:
            return self._waiting[player]
        if self._waiting:
            other = next(iter(self._waiting))
            game = self._waiting[other]
            await self.grain(Game, game).join(player)
            del self._waiting[other]  # only now, in case the call failed
            return game
        return await self._open(player)

    async def _open(self, player: str) -> str:
        if len(self._waiting) >= PLAYERS_WAITING_MAX:
            raise ValueError(f"{PLAYERS_WAITING_MAX} players wait already")
        self._count += 1
        game = f"{self.key}-{self._count}"
        await self.grain(Game, game).join(player)
        self._waiting[player] = game
        return game


def is_name(text: str) -> bool:
    """Return whether a text can be the name of a player."""
    return 0 < len(text) <= NAME_CHARS_MAX and text.isascii() and text.isalnum() and text != "draw"
