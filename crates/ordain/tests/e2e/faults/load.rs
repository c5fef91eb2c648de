//! Clients that work while things go wrong, and the judgement of what they saw.
//!
//! *Sessions* number their transactions and send each again, to one node after the other, until it is answered: so all
//! of their history is known, and everything in it must have happened exactly once. *Plain* clients send once: what
//! was not answered may have happened or not.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ordain_checker::dependencies::history::{History, Observed, Op, Txn, values_of};
use ordain_checker::{self as checker, Level};

use crate::support::{Client, DEADLINE, Random, Reply, command};

const SESSIONS: usize = 5;
const PLAIN: usize = 2;
const LISTS: u64 = 6;
const ACCOUNTS: u64 = 5;
const BALANCE: i64 = 1000;
/// How long a client waits before it turns to another node.
const PATIENCE: Duration = Duration::from_secs(2);

/// Load on a cluster.
pub struct Load {
    doors: Vec<SocketAddr>,
    is_over: AtomicBool,
    answered: Mutex<u64>,
    progress: Condvar,
}

impl Load {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
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

/// Has clients work while `faults` happen, and judges what they saw. Nodes that are down must be up again at the end.
pub fn under_load(doors: &[SocketAddr], seed: u64, faults: impl FnOnce(&Load)) {
    let mut client = Client::connect(doors[0]).unwrap();
    for account in 0..ACCOUNTS {
        assert_eq!(client.run(&format!("SET account:{account} {BALANCE}")), Reply::ok());
    }
    let load = Load {
        doors: doors.to_vec(),
        is_over: AtomicBool::new(false),
        answered: Mutex::new(0),
        progress: Condvar::new(),
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
                let mut plain = Plain { me, acknowledged: 0, unknown: 0 };
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
        judge(&mut Client::connect(*door).unwrap(), &sessions, &plain);
    }
    let retries: u64 = sessions.iter().map(|session| session.retries).sum();
    let unknown: i64 = plain.iter().map(|plain| plain.unknown).sum();
    println!(
        "{} transactions of sessions, of which {retries} were sent again; {} plain ones, and {unknown} of which \
         nobody knows",
        sessions.iter().map(|session| session.number).sum::<u64>(),
        plain.iter().map(|plain| plain.acknowledged).sum::<i64>(),
    );
}

/// A client with a session.
struct Session {
    me: usize,
    numbers: Random,
    client: Option<Client>,
    door: usize,
    /// The request sent last.
    number: u64,
    retries: u64,
    /// Its own counter.
    count: i64,
    /// Everybody's counter as it was told, and when that was asked and answered.
    shared: Vec<(Instant, Instant, i64)>,
    committed: Vec<Txn>,
}

/// Why there is no answer.
#[derive(Debug)]
enum NoAnswer {
    Broken(#[expect(dead_code, reason = "it is shown")] io::Error),
    /// The node has said that it does not know, or that it cannot.
    Again(#[expect(dead_code, reason = "it is shown")] String),
}

impl Session {
    fn new(me: usize, numbers: Random) -> Session {
        let (door, shared, committed) = (me, Vec::new(), Vec::new());
        Session { me, numbers, client: None, door, number: 0, retries: 0, count: 0, shared, committed }
    }

    /// One transaction, to its answer.
    fn step(&mut self, load: &Load) {
        self.number += 1;
        let asked = Instant::now();
        match self.numbers.below(4) {
            0 => {
                // Values name the transaction and the operation, so that every list tells its history.
                let base = (self.me as u64) << 48 | self.number << 8;
                let mut txn = Txn { base, ops: Vec::new() };
                let mut commands = Vec::new();
                for i in 0..1 + self.numbers.below(4) {
                    let key = self.numbers.below(LISTS);
                    let name = format!("list:{key}").into_bytes();
                    if self.numbers.below(2) == 0 {
                        let value = base + i;
                        commands.push(vec![b"APPEND".to_vec(), name, value.to_le_bytes().to_vec()]);
                        txn.ops.push(Op::Append { key, value });
                    } else {
                        commands.push(vec![b"GET".to_vec(), name]);
                        txn.ops.push(Op::Read { key, values: Vec::new() });
                    }
                }
                let replies = self.transact(&commands, load);
                for (op, reply) in txn.ops.iter_mut().zip(replies) {
                    if let Op::Read { values, .. } = op {
                        *values = values_of(reply.bytes()).expect("whole values");
                    } else {
                        assert!(reply.int() > 0);
                    }
                }
                self.committed.push(txn);
            }
            1 => {
                let amount = self.numbers.below(50).to_string();
                let [from, to] = [(); 2].map(|()| format!("account:{}", self.numbers.below(ACCOUNTS)));
                let words = [["DECRBY", &from, &amount], ["INCRBY", &to, &amount]];
                self.transact(&words.map(|words| words.map(|word| word.as_bytes().to_vec()).to_vec()), load);
            }
            2 => {
                let own = format!("count:{}", self.me);
                let words = [["INCR", "count"], ["INCR", &own]];
                let words = words.map(|words| words.map(|word| word.as_bytes().to_vec()).to_vec());
                let replies = self.transact(&words, load);
                self.count += 1;
                assert_eq!(replies[1].int(), self.count, "session {} counts exactly once", self.me);
                self.shared.push((asked, Instant::now(), replies[0].int()));
            }
            _ => {
                let words = (0..ACCOUNTS).map(|i| vec![b"GET".to_vec(), format!("account:{i}").into_bytes()]);
                let replies = self.transact(&words.collect::<Vec<_>>(), load);
                let sum: i64 = replies.iter().map(|reply| reply.text().parse::<i64>().unwrap()).sum();
                assert_eq!(sum, ACCOUNTS as i64 * BALANCE, "money came or went");
            }
        }
        load.note();
    }

    /// Runs commands as one transaction under the session's next number, however often it has to be sent.
    fn transact(&mut self, commands: &[Vec<Vec<u8>>], load: &Load) -> Vec<Reply> {
        let begun = Instant::now();
        loop {
            match self.attempt(commands, load) {
                Ok(replies) => return replies,
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

    fn attempt(&mut self, commands: &[Vec<Vec<u8>>], load: &Load) -> Result<Vec<Reply>, NoAnswer> {
        let client = match &mut self.client {
            Some(client) => client,
            none => none.insert(connect(load.doors[self.door % load.doors.len()])?),
        };
        let mut bytes = command(&["CLIENT", "SESSION", &(self.me + 1).to_string()]);
        bytes.extend(command(&["CLIENT", "REQUEST", &self.number.to_string()]));
        bytes.extend(command(&["MULTI"]));
        commands.iter().for_each(|words| bytes.extend(command(words)));
        bytes.extend(command(&["EXEC"]));
        client.send(&bytes)?;
        for _ in 0..3 {
            assert_eq!(client.receive()?, Reply::ok());
        }
        for _ in commands {
            assert_eq!(client.receive()?, Reply::Simple("QUEUED".into()));
        }
        match client.receive()? {
            Reply::Array(replies) => Ok(replies),
            Reply::Error(text) if ["BUSY", "UNKNOWN"].iter().any(|word| text.starts_with(word)) => {
                Err(NoAnswer::Again(text))
            }
            other => panic!("request {}.{}: {other:?}", self.me, self.number),
        }
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

/// A client without a session.
struct Plain {
    me: usize,
    acknowledged: i64,
    unknown: i64,
}

impl Plain {
    fn work(&mut self, load: &Load) {
        let mut doors = load.doors.iter().cycle().skip(self.me);
        while !load.is_over() {
            let Some(Ok(mut client)) = doors.next().map(|door| connect(*door)) else { continue };
            let words = command(&["INCR", &format!("plain:{}", self.me)]);
            while !load.is_over() && client.send(&words).is_ok() {
                match client.receive() {
                    Ok(Reply::Int(_)) => self.acknowledged += 1,
                    Ok(Reply::Error(text)) if text.starts_with("BUSY") => {}
                    _ => {
                        self.unknown += 1;
                        break;
                    }
                }
                load.note();
            }
        }
    }
}

/// Compares all that clients saw with what a node has in the end.
fn judge(client: &mut Client, sessions: &[Session], plain: &[Plain]) {
    let number = |reply: Reply| if reply == Reply::Nil { 0 } else { reply.text().parse::<i64>().unwrap() };
    let lists: BTreeMap<u64, Vec<u64>> = (0..LISTS)
        .map(|list| (list, values_of(client.run(&format!("GET list:{list}")).bytes()).expect("whole values")))
        .collect();
    let committed = sessions.iter().flat_map(|session| session.committed.iter().cloned());
    let txns = committed.map(Observed::committed).collect();
    let history = History { txns, orders: lists, ..History::default() };
    if let Err(finding) = checker::judge(Level::Serializable, &history) {
        panic!("{finding}");
    }

    let accounts = (0..ACCOUNTS).map(|i| number(client.run(&format!("GET account:{i}"))));
    assert_eq!(accounts.sum::<i64>(), ACCOUNTS as i64 * BALANCE, "money came or went");
    for session in sessions {
        assert_eq!(number(client.run(&format!("GET count:{}", session.me))), session.count);
    }
    let mut shared: Vec<_> = sessions.iter().flat_map(|session| session.shared.iter().copied()).collect();
    shared.sort_unstable_by_key(|(_, _, count)| *count);
    assert!(shared.iter().map(|(_, _, count)| *count).eq(1..=shared.len() as i64), "each number once");
    assert_eq!(number(client.run("GET count")), shared.len() as i64);
    // Strictly serializable: what was answered before another was asked comes before it.
    let mut soonest = None;
    for (asked, answered, count) in shared.iter().rev() {
        assert!(
            soonest.is_none_or(|soonest| *asked <= soonest),
            "{count} was asked for after a later number was told"
        );
        soonest = Some(soonest.map_or(*answered, |soonest: Instant| soonest.min(*answered)));
    }
    for plain in plain {
        let found = number(client.run(&format!("GET plain:{}", plain.me)));
        let possible = plain.acknowledged..=plain.acknowledged + plain.unknown;
        assert!(possible.contains(&found), "{found} of {possible:?}");
    }
}
