//! Clients that work while things go wrong, and the judgement of what they saw.
//!
//! *Sessions* number their transactions and send each again, to one node after the other, until it is answered: so all
//! of their history is known, and everything in it must have happened exactly once. *Plain* clients send once: what
//! was not answered may have happened or not. Both append to the same lists and read them; some of their transactions fail
//! when they have appended. All of that is one history, which the checker judges at the level that the engine promises.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ordain_checker::dependencies::history::{History, Observed, Op, Outcome, Txn, values_of};
use ordain_checker::{self as checker, Level};

use super::grid::Grid;
use crate::support::{Client, DEADLINE, Expect, Random, Reply, command};

const SESSIONS: usize = 5;
const PLAIN: usize = 2;
const LISTS: u64 = 6;
const ACCOUNTS: u64 = 5;
const BALANCE: i64 = 1000;
/// How long a client waits before it turns to another node.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest time for which what a primary has answered may be lost with it (`--replication async`).
const LOSS_WINDOW: Duration = Duration::from_secs(1);
/// The time between two faults on a cluster that may lose answers: what most of it was answered must hold.
const CALM: Duration = Duration::from_secs(3);

/// The promises that a cluster is held to.
#[derive(Clone, Copy, Debug)]
pub struct Promise {
    /// The isolation level.
    pub level: Level,
    /// A transaction may abort because it used what another had written that aborted.
    pub cascades: bool,
    /// What was answered shortly before a node was given up may be lost with it ([`Load::trouble`]).
    pub loses: bool,
}

/// Load on a cluster.
pub struct Load {
    doors: Vec<SocketAddr>,
    promise: Promise,
    begun: Instant,
    connections: AtomicU64,
    is_over: AtomicBool,
    answered: Mutex<u64>,
    progress: Condvar,
    /// Times within which answers need not hold, ns since the load began.
    void: Mutex<Vec<(u64, u64)>>,
}

impl Load {
    /// Lets work go on undisturbed, and then has something go wrong, until all nodes are ready again.
    ///
    /// On a cluster that may lose answers those are void that were given within a second before the fault or until a second
    /// after its end. If the machine stood still for so long that a primary was given up meanwhile, all since the last fault are.
    pub fn trouble(&self, grid: &mut Grid, stretch: u64, fault: impl FnOnce(&mut Grid, &Load)) {
        let calm = self.calm(grid, stretch);
        fault(grid, self);
        grid.await_ready();
        let window = LOSS_WINDOW.as_nanos() as u64;
        if self.promise.loses {
            self.void.lock().unwrap().push((calm.saturating_sub(window), self.now() + window));
        }
    }

    /// Lets work go on until so many more transactions have been answered, and for long enough that some of the answers must
    /// hold. The time up to which answers must hold.
    pub fn calm(&self, grid: &Grid, stretch: u64) -> u64 {
        let begin = self.now();
        if !self.promise.loses {
            self.advance(stretch);
            return self.now();
        }
        let terms = grid.terms();
        while self.now() - begin < CALM.as_nanos() as u64 {
            self.advance(stretch);
        }
        if grid.terms() == terms {
            return self.now();
        }
        self.void.lock().unwrap().push((begin, self.now()));
        begin
    }

    /// Whether an answer of this time need not hold.
    fn is_void(&self, answered: u64) -> bool {
        self.void.lock().unwrap().iter().any(|(from, to)| (*from..=*to).contains(&answered))
    }

    /// The observation that a transaction is held to: one whose answer is void may have taken effect or not. Where nodes are lost with
    /// what they had, one without an answer keeps no order with what its client asked for next (docs/guide.md).
    fn held(&self, observed: Observed) -> Observed {
        let is_void = observed.answered.is_some_and(|at| self.is_void(at));
        match observed.outcome {
            Outcome::Committed if is_void => {
                Observed { outcome: Outcome::Unknown, answered: None, may_be_overtaken: true, ..observed }
            }
            Outcome::Unknown if self.promise.loses => Observed { may_be_overtaken: true, ..observed },
            _ => observed,
        }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// The time since the load began, by which the history is told, ns.
    fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    /// A number for a new connection, which is a session of the history.
    fn connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed)
    }

    fn note(&self) {
        *self.answered.lock().unwrap() += 1;
        self.progress.notify_all();
    }

    /// Waits until so many more transactions have been answered.
    #[track_caller]
    pub fn advance(&self, count: u64) {
        let answered = self.answered.lock().unwrap();
        let goal = *answered + count;
        let (answered, waited) =
            self.progress.wait_timeout_while(answered, DEADLINE, |answered| *answered < goal).unwrap();
        assert!(!waited.timed_out(), "the load stands still: {} of {goal} transactions", *answered);
    }
}

/// Ends the load, also when a test fails.
struct Over<'a>(&'a Load);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// Has clients work while `faults` happen, and holds what they saw to strict serializability. Nodes that are down must be up
/// again at the end.
pub fn under_load(doors: &[SocketAddr], seed: u64, faults: impl FnOnce(&Load)) {
    let promise = Promise { level: Level::StrictSerializable, cascades: false, loses: false };
    promised_under_load(promise, doors, seed, faults);
}

/// The same at the level that a cluster promises.
pub fn promised_under_load(promise: Promise, doors: &[SocketAddr], seed: u64, faults: impl FnOnce(&Load)) {
    let mut deposit = vec!["MSET".to_owned()];
    (0..ACCOUNTS).for_each(|account| deposit.extend([format!("account:{account}"), BALANCE.to_string()]));
    assert_eq!(Client::connect(doors[0]).unwrap().insist_on(&deposit), Reply::ok());
    let load = Load {
        doors: doors.to_vec(),
        promise,
        begun: Instant::now(),
        connections: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        answered: Mutex::new(0),
        progress: Condvar::new(),
        void: Mutex::default(),
    };
    let mut numbers = Random(seed);
    let (sessions, plain) = thread::scope(|scope| {
        let load = &load;
        let over = Over(load);
        let sessions: Vec<_> = (0..SESSIONS)
            .map(|me| {
                let mut session = Session::new(me, Random(numbers.next()));
                scope.spawn(move || {
                    while !load.is_over() {
                        session.step(load);
                    }
                    session
                })
            })
            .collect();
        let plain: Vec<_> = (0..PLAIN)
            .map(|me| {
                let mut plain = Plain::new(SESSIONS + me, Random(numbers.next()));
                scope.spawn(move || {
                    plain.work(load);
                    plain
                })
            })
            .collect();
        faults(load);
        drop(over);
        let sessions: Vec<Session> = sessions.into_iter().map(|thread| thread.join().unwrap()).collect();
        let plain: Vec<Plain> = plain.into_iter().map(|thread| thread.join().unwrap()).collect();
        (sessions, plain)
    });
    for door in doors {
        judge(&load, &mut Client::connect(*door).unwrap(), &sessions, &plain);
    }
    let retries: u64 = sessions.iter().map(|session| session.retries).sum();
    let count = |of: fn(&Plain) -> u64| plain.iter().map(of).sum::<u64>();
    println!(
        "{} transactions of sessions, of which {retries} were sent again; {} plain ones, and {} of which nobody knows",
        sessions.iter().map(|session| session.number).sum::<u64>(),
        count(|plain| (plain.acknowledged.len() + plain.history.len()) as u64),
        count(|plain| plain.unknown as u64 + plain.unknown_lists),
    );
}

/// A client with a session.
struct Session {
    me: usize,
    numbers: Random,
    client: Option<(Client, u64)>,
    door: usize,
    /// The request sent last.
    number: u64,
    retries: u64,
    counts: Vec<Counted>,
    history: Vec<Observed>,
}

/// The answer to a transaction that has counted up a session's own counter and everybody's.
#[derive(Clone, Copy)]
struct Counted {
    asked: u64,
    answered: u64,
    own: i64,
    shared: i64,
}

/// Why there is no answer.
#[derive(Debug)]
enum NoAnswer {
    Broken(#[expect(dead_code, reason = "it is shown")] io::Error),
    /// The node has said that it does not know, or that it cannot.
    Again(String),
}

/// A command, in words.
type Words = Vec<Vec<u8>>;

fn words(words: &[&str]) -> Words {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// Appends to the lists of its keys, and fails.
const DOOMED: &str = "for i, key in ipairs(KEYS) do redis.call('APPEND', key, ARGV[i]) end error('doomed')";

/// A transaction on the lists: its operations, without what they read.
fn draw(numbers: &mut Random, me: usize, number: u64) -> Txn {
    // Values name the transaction and the operation, so that every list tells its history.
    let base = (me as u64) << 48 | number << 8;
    let ops = (0..1 + numbers.below(4)).map(|i| match (numbers.below(LISTS), numbers.below(2)) {
        (key, 0) => Op::Append { key, value: base + i },
        (key, _) => Op::Read { key, values: Vec::new() },
    });
    Txn { base, ops: ops.collect() }
}

fn commands_of(txn: &Txn) -> Vec<Words> {
    let command = |op: &Op| {
        let name = format!("list:{}", op.key()).into_bytes();
        match op.written() {
            Some(value) => vec![b"APPEND".to_vec(), name, value.to_le_bytes().to_vec()],
            None => vec![b"GET".to_vec(), name],
        }
    };
    txn.ops.iter().map(command).collect()
}

/// A script that does the appends of a transaction and fails.
fn doomed(txn: &Txn) -> Words {
    let appends: Vec<(u64, u64)> = txn.ops.iter().filter_map(|op| Some((op.key(), op.written()?))).collect();
    let mut command = words(&["EVAL", DOOMED, &appends.len().to_string()]);
    command.extend(appends.iter().map(|(key, _)| format!("list:{key}").into_bytes()));
    command.extend(appends.iter().map(|(_, value)| value.to_le_bytes().to_vec()));
    command
}

/// Fills in what a transaction was answered.
fn answer(txn: &mut Txn, replies: &[Reply]) {
    for (op, reply) in txn.ops.iter_mut().zip(replies) {
        if let Op::Read { values, .. } = op {
            *values = values_of(reply.bytes()).expect("whole values");
        } else {
            assert!(reply.int() > 0);
        }
    }
}

/// The commands as a block.
fn block(commands: &[Words]) -> Vec<u8> {
    let mut bytes = command(&["MULTI"]);
    commands.iter().for_each(|words| bytes.extend(command(words)));
    bytes.extend(command(&["EXEC"]));
    bytes
}

/// Reads the answers to a block, the last of which is that to EXEC.
fn receive_block(client: &mut Client, commands: usize) -> io::Result<Reply> {
    assert_eq!(client.receive()?, Reply::ok());
    for _ in 0..commands {
        assert_eq!(client.receive()?, Reply::Status("QUEUED".into()));
    }
    client.receive()
}

/// What became of a transaction that was answered.
enum Answer {
    Done(Vec<Reply>),
    /// It has no effect, as was asked, or because it had used what another had written that aborted.
    Undone,
}

impl Promise {
    /// Reads the answer to a transaction.
    fn answer(self, reply: Reply) -> Result<Answer, NoAnswer> {
        if let Reply::Array(replies) = reply {
            return Ok(Answer::Done(replies));
        }
        let text = reply.error();
        if text.contains("doomed") || text.starts_with("TXNABORT it used what") && self.cascades {
            return Ok(Answer::Undone);
        }
        assert!(text.starts_with("BUSY") || text.starts_with("UNKNOWN"), "{reply:?}");
        Err(NoAnswer::Again(text.to_owned()))
    }
}

impl Session {
    fn new(me: usize, numbers: Random) -> Session {
        let (door, counts, history) = (me, Vec::new(), Vec::new());
        Session { me, numbers, client: None, door, number: 0, retries: 0, counts, history }
    }

    /// One transaction, to its answer.
    fn step(&mut self, load: &Load) {
        self.number += 1;
        let asked = load.now();
        match self.numbers.below(9) {
            0..=1 => self.lists(false, load),
            2 => self.lists(true, load),
            3..=4 => {
                let amount = self.numbers.below(50).to_string();
                let [from, to] = [(); 2].map(|()| format!("account:{}", self.numbers.below(ACCOUNTS)));
                self.transact(&[words(&["DECRBY", &from, &amount]), words(&["INCRBY", &to, &amount])], load);
            }
            5..=6 => {
                let own = format!("count:{}", self.me);
                let counts = [words(&["INCR", "count"]), words(&["INCR", &own])];
                if let Answer::Done(replies) = self.transact(&counts, load) {
                    let (shared, own) = (replies[0].int(), replies[1].int());
                    self.counts.push(Counted { asked, answered: load.now(), own, shared });
                }
            }
            _ => {
                let gets = (0..ACCOUNTS).map(|i| words(&["GET", &format!("account:{i}")]));
                if let Answer::Done(replies) = self.transact(&gets.collect::<Vec<_>>(), load) {
                    // A snapshot may be of the time before the deposit.
                    let is_strict = load.promise.level == Level::StrictSerializable;
                    if is_strict || replies.iter().any(|reply| *reply != Reply::Nil) {
                        let sum: i64 = replies.iter().map(|reply| reply.text().parse::<i64>().unwrap()).sum();
                        assert_eq!(sum, ACCOUNTS as i64 * BALANCE, "money came or went");
                    }
                }
            }
        }
        load.note();
    }

    /// A transaction on the lists.
    fn lists(&mut self, fails: bool, load: &Load) {
        let mut txn = draw(&mut self.numbers, self.me, self.number);
        let asked = load.now();
        let fails = fails && txn.is_update();
        let commands = if fails { vec![doomed(&txn)] } else { commands_of(&txn) };
        let outcome = match self.transact(&commands, load) {
            Answer::Done(replies) => {
                assert!(!fails, "a script that fails has no answer: {replies:?}");
                answer(&mut txn, &replies);
                Outcome::Committed
            }
            Answer::Undone => Outcome::Aborted,
        };
        let connection = self.client.as_ref().map_or(0, |(_, connection)| *connection);
        let observed = Observed::new(txn, outcome).between(asked, Some(load.now()));
        self.history.push(observed.of_session(connection, self.number));
    }

    /// Runs commands as one transaction under the session's next number, however often it has to be sent.
    fn transact(&mut self, commands: &[Words], load: &Load) -> Answer {
        let begun = Instant::now();
        loop {
            match self.attempt(commands, load) {
                Ok(answer) => return answer,
                Err(reason) => {
                    let is_hopeless = begun.elapsed() > DEADLINE;
                    assert!(!is_hopeless, "request {}.{} has no answer: {reason:?}", self.me, self.number);
                    self.client = None;
                    self.door += 1;
                    self.retries += 1;
                }
            }
        }
    }

    fn attempt(&mut self, commands: &[Words], load: &Load) -> Result<Answer, NoAnswer> {
        let client = match &mut self.client {
            Some((client, _)) => client,
            none => {
                let client = connect(load.doors[self.door % load.doors.len()])?;
                &mut none.insert((client, load.connection())).0
            }
        };
        let mut bytes = command(&["CLIENT", "SESSION", &(self.me + 1).to_string()]);
        bytes.extend(command(&["CLIENT", "REQUEST", &self.number.to_string()]));
        let script = match commands {
            [command] if command[0] == b"EVAL" => Some(command),
            _ => None,
        };
        bytes.extend(script.map_or_else(|| block(commands), |script| command(script)));
        client.send(&bytes)?;
        for _ in 0..2 {
            assert_eq!(client.receive()?, Reply::ok());
        }
        let reply = match script {
            Some(_) => client.receive()?,
            None => receive_block(client, commands.len())?,
        };
        load.promise.answer(reply)
    }
}

impl From<io::Error> for NoAnswer {
    fn from(error: io::Error) -> NoAnswer {
        NoAnswer::Broken(error)
    }
}

fn connect(door: SocketAddr) -> io::Result<Client> {
    let mut client = Client::connect(door)?;
    client.socket().set_read_timeout(Some(PATIENCE))?;
    Ok(client)
}

/// A client without a session: what it has sent once it does not send again.
struct Plain {
    me: usize,
    numbers: Random,
    number: u64,
    /// When it was answered that its counter was counted up, each time.
    acknowledged: Vec<u64>,
    unknown: i64,
    unknown_lists: u64,
    history: Vec<Observed>,
}

impl Plain {
    fn new(me: usize, numbers: Random) -> Plain {
        let (acknowledged, history) = (Vec::new(), Vec::new());
        Plain { me, numbers, number: 0, acknowledged, unknown: 0, unknown_lists: 0, history }
    }

    fn work(&mut self, load: &Load) {
        let mut doors = load.doors.iter().cycle().skip(self.me);
        while !load.is_over() {
            let Some(Ok(mut client)) = doors.next().map(|door| connect(*door)) else { continue };
            let connection = load.connection();
            while !load.is_over() {
                let is_connected = match self.numbers.below(2) {
                    0 => self.count(&mut client, load),
                    _ => self.lists(&mut client, connection, load),
                };
                if !is_connected {
                    break;
                }
                load.note();
            }
        }
    }

    /// Counts up its own counter. False: nothing more is to be had of this connection.
    fn count(&mut self, client: &mut Client, load: &Load) -> bool {
        if client.send(&command(&["INCR", &format!("plain:{}", self.me)])).is_err() {
            self.unknown += 1;
            return false;
        }
        match client.receive() {
            Ok(Reply::Int(_)) => self.acknowledged.push(load.now()),
            Ok(reply) if reply.is_error("BUSY") => {}
            _ => {
                self.unknown += 1;
                return false;
            }
        }
        true
    }

    /// Transactions on the lists, up to four under way at once. False: nothing more is to be had of this connection.
    fn lists(&mut self, client: &mut Client, connection: u64, load: &Load) -> bool {
        let mut bytes = Vec::new();
        let sent: Vec<Txn> = (0..=self.numbers.below(4))
            .map(|_| {
                self.number += 1;
                let txn = draw(&mut self.numbers, self.me, self.number);
                bytes.extend(block(&commands_of(&txn)));
                txn
            })
            .collect();
        let asked = load.now();
        let mut is_connected = client.send(&bytes).is_ok();
        for mut txn in sent {
            let reply = match is_connected {
                true => receive_block(client, txn.ops.len()).map_err(NoAnswer::from),
                false => Err(NoAnswer::Broken(io::ErrorKind::NotConnected.into())),
            };
            let answered = Some(load.now());
            let (outcome, answered) = match reply.and_then(|reply| load.promise.answer(reply)) {
                Ok(Answer::Done(replies)) => {
                    answer(&mut txn, &replies);
                    (Outcome::Committed, answered)
                }
                Ok(Answer::Undone) => (Outcome::Aborted, answered),
                // It was not taken.
                Err(NoAnswer::Again(text)) if text.starts_with("BUSY") => (Outcome::Aborted, answered),
                Err(NoAnswer::Again(_)) => (Outcome::Unknown, None),
                Err(NoAnswer::Broken(_)) => {
                    is_connected = false;
                    (Outcome::Unknown, None)
                }
            };
            self.unknown_lists += u64::from(outcome == Outcome::Unknown);
            // The bases of a client rise in the order in which it has sent.
            let observed = Observed::new(txn, outcome).between(asked, answered);
            let place = observed.txn.base;
            self.history.push(observed.of_session(connection, place));
        }
        is_connected
    }
}

/// The values that a node has in the end, by key.
fn state(
    client: &mut Client,
    level: Level,
    plain: &[Plain],
    sessions: &[Session],
) -> BTreeMap<String, Reply> {
    if level != Level::StrictSerializable {
        // A read on a snapshot sees at least what was answered before its connection wrote.
        (0..2).for_each(|_| _ = client.insist("INCR judged"));
    }
    let mut keys = vec!["count".to_owned()];
    keys.extend((0..LISTS).map(|list| format!("list:{list}")));
    keys.extend((0..ACCOUNTS).map(|account| format!("account:{account}")));
    keys.extend(sessions.iter().map(|session| format!("count:{}", session.me)));
    keys.extend(plain.iter().map(|plain| format!("plain:{}", plain.me)));
    let words = [&["MGET".to_owned()][..], &keys].concat();
    let Reply::Array(values) = client.insist_on(&words) else { panic!("MGET has no list of values") };
    keys.into_iter().zip(values).collect()
}

/// Compares all that clients saw with what a node has in the end.
fn judge(load: &Load, client: &mut Client, sessions: &[Session], plain: &[Plain]) {
    let level = load.promise.level;
    let state = state(client, level, plain, sessions);
    let number = |key: String| match &state[&key] {
        Reply::Nil => 0,
        reply => reply.text().parse::<i64>().unwrap(),
    };
    let list = |list| values_of(state[&format!("list:{list}")].bytes()).expect("whole values");
    let of_plain = plain.iter().flat_map(|plain| &plain.history);
    let all = sessions.iter().flat_map(|session| &session.history).chain(of_plain);
    let txns: Vec<Observed> = all.map(|observed| load.held(observed.clone())).collect();
    let certain = txns.iter().filter(|txn| txn.outcome == Outcome::Committed).count();
    assert!(certain > 100 || !load.promise.loses, "only {certain} answers must hold");
    let orders = (0..LISTS).map(|key| (key, list(key))).collect();
    let history = History { txns, orders, ..History::default() };
    if let Err(finding) = checker::judge(level, &history) {
        let txns: Vec<&Observed> = finding.txns.iter().map(|txn| &history.txns[*txn]).collect();
        panic!("{}: {finding}\n{txns:#?}", level.name());
    }

    let accounts = (0..ACCOUNTS).map(|account| number(format!("account:{account}")));
    assert_eq!(accounts.sum::<i64>(), ACCOUNTS as i64 * BALANCE, "money came or went");
    let mut shared: Vec<Counted> = Vec::new();
    for session in sessions {
        // What a void answer tells was counted or not; all else exactly once.
        let (mut least, mut most) = (0, 0);
        for counted in &session.counts {
            most += 1;
            if !load.is_void(counted.answered) {
                least += 1;
                let possible = least..=most;
                assert!(
                    possible.contains(&counted.own),
                    "session {}: {} of {possible:?}",
                    session.me,
                    counted.own
                );
                shared.push(*counted);
            }
        }
        let found = number(format!("count:{}", session.me));
        assert!((least..=most).contains(&found), "session {}: {found} of {least} to {most}", session.me);
    }
    let all: usize = sessions.iter().map(|session| session.counts.len()).sum();
    let found = number("count".to_owned());
    assert!((shared.len() as i64..=all as i64).contains(&found), "{found} of {} to {all}", shared.len());
    shared.sort_unstable_by_key(|counted| counted.shared);
    assert!(shared.windows(2).all(|pair| pair[0].shared < pair[1].shared), "each number once");
    assert!(shared.iter().all(|counted| (1..=found).contains(&counted.shared)), "no number beyond the last");
    // Updates are strictly serializable at every level: what was answered before another was asked comes before it.
    let mut soonest = None;
    for Counted { asked, answered, shared, .. } in shared.iter().rev() {
        assert!(
            soonest.is_none_or(|soonest| *asked <= soonest),
            "{shared} was asked for after a later number was told"
        );
        soonest = Some(soonest.map_or(*answered, |soonest: u64| soonest.min(*answered)));
    }
    for plain in plain {
        let found = number(format!("plain:{}", plain.me));
        let certain = plain.acknowledged.iter().filter(|answered| !load.is_void(**answered)).count();
        let possible = certain as i64..=plain.acknowledged.len() as i64 + plain.unknown;
        assert!(possible.contains(&found), "{found} of {possible:?}");
    }
}
