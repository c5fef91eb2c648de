//! Whole nodes on real threads: what a driver promises its roles, and what a node promises its operator.
//!
//! No test sleeps: each waits for what a role says over a channel, or for the node to end.

#![expect(clippy::unwrap_used, reason = "a test may fail where it likes")]

use std::fmt::Debug;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry};
use ordain_model::Micros;
use ordain_role::{
    Address, Bytes, Directory, DiskDone, DiskError, DiskOp, DiskRequest, Event, NodeId, Now, Outbox, Rebuild,
    Role, TimerId, Work, WorkDone,
};
use ordain_runtime::{
    Disk, Edge, FsDirectory, LoopSpec, Options, Runtime, StartError, Stopped, Tokens, Turn,
};

/// The messages of these tests: a number and what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Msg {
    Ping(u64),
    Pong(u64),
}

fn at(role: u16) -> Address {
    Address { node: NodeId(0), role }
}

fn options() -> Options {
    // Tiny rings, so that the way around a full one is taken all the time.
    Options { ring: 4, ..Options::default() }
}

/// A role that is a closure.
struct Acts<F>(F);

impl<F: FnMut(Now, Event<Msg>, &mut Outbox<Msg>) + Send> Role for Acts<F> {
    type Message = Msg;

    fn handle(&mut self, now: Now, event: Event<Msg>, out: &mut Outbox<Msg>) {
        (self.0)(now, event, out);
    }

    fn name(&self) -> &'static str {
        "acts"
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        report("acts_closures", 1.0);
    }
}

fn echo() -> impl Role<Message = Msg> {
    Acts(|_, event, out: &mut Outbox<Msg>| {
        if let Event::Message { from, message: Msg::Ping(n) } = event {
            out.send(from, Msg::Pong(n));
        }
    })
}

/// Sends `count` pings in bursts of `burst` to each peer, checks that pongs come back in order, and reports.
fn pinger(peers: Vec<u16>, count: u64, burst: u64, done: Sender<u64>) -> impl Role<Message = Msg> {
    let mut next = vec![0; peers.len()];
    Acts(move |_, event, out: &mut Outbox<Msg>| match event {
        Event::Start => {
            for peer in &peers {
                (0..burst).for_each(|n| out.send(at(*peer), Msg::Ping(n)));
            }
        }
        Event::Message { from, message: Msg::Pong(n) } => {
            let i = peers.iter().position(|peer| *peer == from.role).unwrap();
            assert_eq!(n, next[i], "pongs of {from:?}");
            next[i] += 1;
            if n + burst < count {
                out.send(from, Msg::Ping(n + burst));
            }
            if next.iter().all(|n| *n == count) {
                done.send(count).unwrap();
            }
        }
        Event::Message { from, message: ping } => {
            let Msg::Ping(n) = ping else { unreachable!() };
            out.send(from, Msg::Pong(n));
        }
        Event::Stop => {}
        Event::Timer(_) | Event::Disk(_) | Event::Work(_) => unreachable!(),
    })
}

/// Its loop goes on while the work is done: the work waits for what a timer of the same role sends.
#[test]
fn work_that_is_given_away_is_done_beside_its_loop_and_answered_once() {
    let (open, gate) = channel::<()>();
    let (done, finished) = channel();
    let mut gate = Some(gate);
    let role = Acts(move |_, event, out: &mut Outbox<Msg>| match event {
        Event::Start => {
            let gate = gate.take().unwrap();
            out.work(Work::new(7, move || gate.recv().is_ok()));
            out.work(Work::new(8, || false));
            out.set_timer(TimerId(1), Micros(100));
        }
        Event::Timer(_) => open.send(()).unwrap(),
        Event::Work(WorkDone { token, product }) => done.send((token, product.downcast().ok())).unwrap(),
        Event::Stop => {}
        _ => unreachable!(),
    });
    let running = Runtime::start(options(), None, vec![LoopSpec::new("a").role(1, role)]).unwrap();
    let both = [finished.recv().unwrap(), finished.recv().unwrap()];
    assert_eq!(both, [(7, Some(Box::new(true))), (8, Some(Box::new(false)))]);
    running.stop().unwrap();
    assert!(finished.try_recv().is_err());
}

#[test]
fn two_loops_deliver_everything_in_order() {
    let (done, finished) = channel();
    let loops = vec![
        LoopSpec::new("a").role(1, pinger(vec![2, 3], 50_000, 300, done)),
        LoopSpec::new("b").role(2, echo()).role(3, echo()),
    ];
    let running = Runtime::start(options(), None, loops).unwrap();
    assert_eq!(finished.recv(), Ok(50_000));
    let handle = running.handle();
    running.stop().unwrap();
    let mut seen = Vec::new();
    handle.inspect(|snapshot| {
        seen.extend(snapshot.roles.iter().map(|role| (snapshot.name.clone(), role.role, role.events)));
        assert!(snapshot.roles.iter().all(|role| role.gauges == [("acts_closures", 1.0)]));
        assert!(snapshot.turns > 0 && snapshot.cpu > Duration::ZERO && snapshot.sent == 100_000);
    });
    // And the start and the stop.
    let of = |name: &str, role, events| (name.to_owned(), role, events);
    assert_eq!(seen, [of("a", 1, 100_002), of("b", 2, 50_002), of("b", 3, 50_002)]);
}

#[test]
fn every_pair_of_many_roles_keeps_its_order() {
    let (done, finished) = channel();
    let roles: Vec<u16> = (0..6).collect();
    let loops = roles.chunks(2).map(|pair| {
        pair.iter().fold(LoopSpec::new(format!("loop-{pair:?}")), |spec, me| {
            let peers = roles.iter().copied().filter(|peer| peer != me).collect();
            spec.role(*me, pinger(peers, 2_000, 20, done.clone()))
        })
    });
    let running = Runtime::start(options(), None, loops.collect()).unwrap();
    for _ in &roles {
        assert_eq!(finished.recv(), Ok(2_000));
    }
    running.stop().unwrap();
}

#[test]
fn a_spinning_loop_delivers_as_well() {
    let (done, finished) = channel();
    let loops =
        vec![LoopSpec::new("a").role(1, pinger(vec![2], 2_000, 1, done)), LoopSpec::new("b").role(2, echo())];
    let options = Options { spin: Duration::from_micros(50), ..options() };
    let running = Runtime::start(options, None, loops).unwrap();
    assert_eq!(finished.recv(), Ok(2_000));
    running.stop().unwrap();
}

#[test]
fn timers_fire_in_order_and_not_before_their_time() {
    let (fired, seen) = channel();
    let role = Acts(move |now: Now, event, out: &mut Outbox<Msg>| match event {
        Event::Start => {
            for (id, us) in [(1, 900), (2, 300), (3, 1), (4, 2_500), (5, 40), (6, 25_000)] {
                out.set_timer(TimerId(id), Micros(us));
            }
            // Set again, and never.
            out.set_timer(TimerId(1), Micros(600));
            out.cancel_timer(TimerId(5));
            fired.send((0, now.elapsed)).unwrap();
        }
        Event::Timer(id) => fired.send((id.0, now.elapsed)).unwrap(),
        Event::Stop => {}
        _ => unreachable!(),
    });
    let running = Runtime::start(options(), None, vec![LoopSpec::new("a").role(1, role)]).unwrap();
    let (_, start) = seen.recv().unwrap();
    for (id, us) in [(3, 1), (2, 300), (1, 600), (4, 2_500), (6, 25_000)] {
        let (fired, time) = seen.recv().unwrap();
        assert_eq!(fired, id);
        assert!(time >= start.plus(Micros(us)), "timer {id}");
    }
    running.stop().unwrap();
    assert!(seen.recv().is_err(), "the cancelled timer fired");
}

/// What a [`Watched`] directory was asked for, and by which thread.
type Log = Arc<Mutex<Vec<(String, String)>>>;

/// A directory that writes down what it is asked for, waits at every sync until it is told to go on, and finds
/// files whose name begins with `full` too large.
#[derive(Clone)]
struct Watched {
    log: Log,
    go: Arc<Mutex<Receiver<()>>>,
}

impl Directory for Watched {
    fn list(&self) -> Result<Vec<(String, u64)>, DiskError> {
        Ok(Vec::new())
    }

    fn read(&self, _file: &str, _offset: u64, _len: usize) -> Result<Vec<u8>, DiskError> {
        Ok(Vec::new())
    }

    fn apply(&mut self, op: &DiskOp) -> Result<(), DiskError> {
        let what = match op {
            DiskOp::Sync { file } => {
                self.go.lock().unwrap().recv().unwrap();
                format!("sync {file}")
            }
            DiskOp::Write { file, offset, .. } => format!("write {file} {offset}"),
            DiskOp::Create { file, .. } if file.starts_with("full") => {
                return Err(DiskError::Full { file: file.clone() });
            }
            other => format!("{other:?}"),
        };
        let thread = thread::current().name().unwrap_or_default().to_owned();
        self.log.lock().unwrap().push((what, thread));
        Ok(())
    }
}

fn watched() -> (Watched, Log, Sender<()>) {
    let (go, wait) = channel();
    let log = Log::default();
    (Watched { log: log.clone(), go: Arc::new(Mutex::new(wait)) }, log, go)
}

fn write(file: &str, offset: u64) -> DiskOp {
    DiskOp::Write { file: file.to_owned(), offset, data: vec![Bytes::from(vec![7; 10])] }
}

fn sync(file: &str) -> DiskOp {
    DiskOp::Sync { file: file.to_owned() }
}

fn request(token: u64, ops: impl Into<Vec<DiskOp>>) -> DiskRequest {
    DiskRequest::new(token, ops.into())
}

/// Reports what the disk answers; makes `requests` at its start.
fn writer<T: Send + 'static>(
    requests: Vec<DiskRequest>,
    done: Sender<T>,
    mut map: impl FnMut(DiskDone) -> T + Send,
) -> impl Role<Message = Msg> {
    let mut requests = Some(requests);
    Acts(move |_, event, out: &mut Outbox<Msg>| match event {
        Event::Start => requests.take().unwrap().into_iter().for_each(|r| out.disk(r)),
        Event::Disk(answer) => done.send(map(answer)).unwrap(),
        Event::Stop => {}
        _ => unreachable!(),
    })
}

#[test]
fn disk_requests_of_a_role_keep_their_order_and_writes_do_not_wait_for_others_syncs() {
    let (directory, log, go) = watched();
    let (done, answers) = channel();
    let a = vec![
        request(1, [write("a", 0)]),
        request(2, [write("a", 10), sync("a")]),
        request(3, [write("a", 20)]),
        request(4, []),
    ];
    let b = vec![request(1, [write("b", 0)]), request(2, [write("b", 10)])];
    let spec = LoopSpec::new("loop")
        .role(1, writer(a, done.clone(), |answer| ('a', answer.token, answer.result.is_ok())))
        .role(2, writer(b, done, |answer| ('b', answer.token, answer.result.is_ok())));
    let running = Runtime::start(options(), Some(Disk::new(directory)), vec![spec]).unwrap();
    // While the sync hangs, what does not depend on it goes on; and the write behind it waits.
    let first: Vec<_> = (0..3).map(|_| answers.recv().unwrap()).collect();
    assert_eq!(first, [('a', 1, true), ('b', 1, true), ('b', 2, true)]);
    assert!(!log.lock().unwrap().iter().any(|(what, _)| what == "write a 20"));
    go.send(()).unwrap();
    let rest: Vec<_> = (0..3).map(|_| answers.recv().unwrap()).collect();
    assert_eq!(rest, [('a', 2, true), ('a', 3, true), ('a', 4, true)]);
    running.stop().unwrap();

    let log = log.lock().unwrap();
    let done_for = |file: &str| -> Vec<(&str, &str)> {
        log.iter().filter(|(what, _)| what.contains(file)).map(|(w, t)| (w.as_str(), t.as_str())).collect()
    };
    let at_disk = [("write a 10", "disk"), ("sync a", "disk"), ("write a 20", "disk")];
    assert_eq!(done_for(" a"), [&[("write a 0", "loop")], &at_disk[..]].concat());
    assert_eq!(done_for(" b"), [("write b 0", "loop"), ("write b 10", "loop")]);
}

#[test]
fn a_disk_fault_reaches_the_role_and_stops_the_rest_of_its_request() {
    let (directory, log, _go) = watched();
    let (done, answers) = channel();
    let create = |file: &str| DiskOp::Create { file: file.to_owned(), len: 1 };
    let requests = vec![request(1, [create("fully"), write("fully", 0)]), request(2, [write("x", 0)])];
    let spec = LoopSpec::new("loop").role(1, writer(requests, done, |answer| answer));
    let running = Runtime::start(options(), Some(Disk::new(directory)), vec![spec]).unwrap();
    let full = DiskError::Full { file: "fully".to_owned() };
    assert_eq!(answers.recv().unwrap(), DiskDone { token: 1, result: Err(full) });
    assert_eq!(answers.recv().unwrap(), DiskDone { token: 2, result: Ok(()) });
    running.stop().unwrap();
    assert_eq!(log.lock().unwrap().len(), 1);
}

#[test]
fn a_node_without_a_disk_says_so() {
    let (done, answers) = channel();
    let spec = LoopSpec::new("loop").role(1, writer(vec![request(1, [sync("x")])], done, |a| a.result));
    let running = Runtime::start(options(), None, vec![spec]).unwrap();
    assert!(answers.recv().unwrap().unwrap_err().to_string().contains("nothing on disk"));
    running.stop().unwrap();
}

#[test]
fn more_requests_than_the_way_to_the_disk_holds_are_all_answered_in_order() {
    let temp = tempfile::tempdir().unwrap();
    let directory = FsDirectory::open(temp.path()).unwrap();
    let (done, answers) = channel();
    let requests = (0..100).map(|i| request(i, [DiskOp::Create { file: format!("f{i}"), len: 0 }]));
    let spec = LoopSpec::new("loop").role(1, writer(requests.collect(), done, |answer| answer.token));
    let running = Runtime::start(options(), Some(Disk::new(directory)), vec![spec]).unwrap();
    assert!(answers.iter().take(100).eq(0..100));
    running.stop().unwrap();
}

#[test]
fn what_was_asked_of_the_disk_is_done_before_a_stop_returns() {
    let temp = tempfile::tempdir().unwrap();
    let directory = FsDirectory::open(temp.path()).unwrap();
    let (done, _answers) = channel();
    let requests = (0..100).map(|i| {
        let file = format!("f{i:02}");
        request(i, [DiskOp::Create { file: file.clone(), len: 5 }, write(&file, 0), sync(&file)])
    });
    let spec = LoopSpec::new("loop").role(1, writer(requests.collect(), done, drop));
    let running = Runtime::start(options(), Some(Disk::new(directory.clone())), vec![spec]).unwrap();
    running.stop().unwrap();
    let files = directory.list().unwrap();
    assert_eq!(files.len(), 100);
    assert!(files.iter().all(|(_, len)| *len == 10));
}

/// Why a node has halted.
fn reason(ended: Result<(), Stopped>) -> String {
    match ended.unwrap_err() {
        Stopped::Halted { reason } => reason,
        Stopped::Rebuilds(how) => panic!("it is rebuilt: {how:?}"),
        Stopped::Restarts { reason } => panic!("it restarts: {reason}"),
    }
}

#[test]
fn a_role_has_the_whole_node_be_rebuilt_and_says_how() {
    for without_log in [false, true] {
        let (said, heard) = channel();
        let watcher = Acts(move |_, event, _: &mut Outbox<Msg>| {
            if let Event::Stop = event {
                said.send(()).unwrap();
            }
        });
        let role = Acts(move |_, _, out: &mut Outbox<Msg>| {
            out.send(at(1), Msg::Ping(1));
            out.rebuild(Rebuild { without_log, without_receive_journal: false });
        });
        let loops = vec![LoopSpec::new("a").role(1, watcher), LoopSpec::new("b").role(2, role)];
        let (directory, ..) = watched();
        let running = Runtime::start(options(), Some(Disk::new(directory)), loops).unwrap();
        assert_eq!(
            running.wait().unwrap_err(),
            Stopped::Rebuilds(Rebuild { without_log, without_receive_journal: false })
        );
        assert!(heard.recv().is_err(), "what it has is not to be trusted, so nothing is left in good order");
    }
}

/// Runs one role beside others that do nothing, and says why the node stopped.
fn stopped_by(act: impl FnMut(Now, Event<Msg>, &mut Outbox<Msg>) + Send + 'static) -> String {
    let loops = vec![
        LoopSpec::new("idle").role(1, echo()),
        LoopSpec::new("bad").role(2, Acts(act)),
        LoopSpec::new("idle-too").role(3, echo()),
    ];
    let (directory, ..) = watched();
    let running = Runtime::start(options(), Some(Disk::new(directory)), loops).unwrap();
    reason(running.wait())
}

#[test]
fn a_broken_invariant_stops_the_whole_node() {
    let reason = stopped_by(|_, _, out| {
        out.halt("two and two are five");
        out.halt("and so on");
    });
    assert_eq!(reason, "acts: two and two are five");
}

#[test]
fn a_panic_stops_the_whole_node_and_names_the_role() {
    let reason = stopped_by(|_, _, _| panic!("out of {}", "luck"));
    assert_eq!(reason, "acts on loop bad panicked: out of luck");
}

#[test]
fn a_message_to_nobody_stops_the_node() {
    assert!(stopped_by(|_, _, out| out.send(at(9), Msg::Ping(1))).contains("does not exist"));
    let elsewhere = Address { node: NodeId(1), role: 1 };
    assert!(stopped_by(move |_, _, out| out.send(elsewhere, Msg::Ping(1))).contains("does not exist"));
}

#[test]
fn a_panic_on_the_disk_thread_stops_the_whole_node() {
    #[derive(Clone)]
    struct Panics;
    impl Directory for Panics {
        fn list(&self) -> Result<Vec<(String, u64)>, DiskError> {
            unreachable!()
        }
        fn read(&self, _: &str, _: u64, _: usize) -> Result<Vec<u8>, DiskError> {
            unreachable!()
        }
        fn apply(&mut self, _: &DiskOp) -> Result<(), DiskError> {
            panic!("head crash")
        }
    }
    let (done, _answers) = channel();
    let spec = LoopSpec::new("loop").role(1, writer(vec![request(1, [sync("x")])], done, drop));
    let running = Runtime::start(options(), Some(Disk::new(Panics)), vec![spec]).unwrap();
    assert_eq!(reason(running.wait()), "the disk thread panicked: head crash");
}

/// What was done on which thread: of a disk that takes no time.
#[derive(Clone)]
struct Timeless(Sender<(String, usize)>);

impl Directory for Timeless {
    fn list(&self) -> Result<Vec<(String, u64)>, DiskError> {
        unreachable!()
    }
    fn read(&self, _: &str, _: u64, _: usize) -> Result<Vec<u8>, DiskError> {
        unreachable!()
    }
    fn apply(&mut self, op: &DiskOp) -> Result<(), DiskError> {
        if let DiskOp::Write { data, .. } = op {
            let thread = std::thread::current().name().unwrap_or_default().to_owned();
            self.0.send((thread, data.iter().map(|part| part.as_ref().len()).sum())).unwrap();
        }
        Ok(())
    }
}

#[test]
fn a_loop_syncs_a_little_itself_once_it_knows_that_syncs_are_quick() {
    let (seen, heard) = channel();
    let entry = |token, len| {
        let data = vec![Bytes::from(vec![7; len])];
        request(token, [DiskOp::Write { file: "x".to_owned(), offset: 0, data }, sync("x")])
    };
    // One request after the other, as the input log makes them; every other one is large.
    let mut token = 0;
    let mut is_stopping = false;
    let role = Acts(move |_, event, out: &mut Outbox<Msg>| {
        is_stopping |= matches!(event, Event::Stop);
        if !is_stopping {
            token += 1;
            out.disk(entry(token, if token % 2 == 1 { 10 } else { 1 << 20 }));
        }
    });
    let spec = LoopSpec::new("loop").role(1, role);
    let running = Runtime::start(options(), Some(Disk::new(Timeless(seen))), vec![spec]).unwrap();
    assert_eq!(heard.recv().unwrap(), ("disk".to_owned(), 10), "nothing is known of the disk yet");
    // However slow this machine is just now, it is quick enough before long.
    let on_the_loop = heard.iter().find(|(thread, len)| {
        assert!(thread == "loop" || thread == "disk");
        assert!(*len == 10 || thread == "disk", "a large request on the loop");
        thread == "loop"
    });
    assert_eq!(on_the_loop, Some(("loop".to_owned(), 10)));
    running.stop().unwrap();
}

#[test]
fn a_stop_tells_every_role_once_and_waits_for_what_it_then_asks_of_the_disk() {
    let temp = tempfile::tempdir().unwrap();
    let directory = FsDirectory::open(temp.path()).unwrap();
    let (said, heard) = channel();
    let tidy = |number: u16| {
        let said = said.clone();
        let mut left = 0;
        Acts(move |_, event, out: &mut Outbox<Msg>| {
            match event {
                Event::Stop => left = 30,
                Event::Disk(done) => assert_eq!(done.result, Ok(())),
                Event::Start => return,
                other => panic!("{other:?}"),
            }
            if left == 0 {
                return said.send(number).unwrap();
            }
            left -= 1;
            let file = format!("{number}-{left:02}");
            let create = DiskOp::Create { file: file.clone(), len: 0 };
            out.disk(request(left, [create, write(&file, 0), sync(&file)]));
        })
    };
    let loops = vec![
        LoopSpec::new("a").role(1, tidy(1)).role(2, tidy(2)),
        LoopSpec::new("b").role(3, tidy(3)),
        LoopSpec::new("c"),
    ];
    let running = Runtime::start(options(), Some(Disk::new(directory.clone())), loops).unwrap();
    running.stop().unwrap();
    let mut ended: Vec<u16> = heard.try_iter().collect();
    ended.sort_unstable();
    assert_eq!(ended, [1, 2, 3], "each hears of its last request, once");
    let files = directory.list().unwrap();
    assert_eq!(files.len(), 90);
    assert!(files.iter().all(|(_, len)| *len == 10), "{files:?}");
}

#[test]
fn roles_are_told_of_a_stop_after_the_edges_have_finished_and_never_if_the_node_halts() {
    let (said, heard) = channel();
    let mut asked = 0;
    let oracle = Acts(move |_, event, out: &mut Outbox<Msg>| match event {
        Event::Message { from, message: Msg::Ping(client) } => {
            asked += 1;
            said.send("asked").unwrap();
            // The stop comes before this fires.
            if asked == 2 {
                out.set_timer(TimerId(1), Micros::from_millis(40));
            }
            if asked == 1 {
                out.send(from, Msg::Pong(client));
            }
        }
        Event::Timer(_) => {
            said.send("answered").unwrap();
            out.send(at(2), Msg::Pong(0));
        }
        Event::Stop => said.send("stop").unwrap(),
        _ => {}
    });
    let (door, bound) = Door::new("127.0.0.1:0".parse().unwrap());
    let loops = vec![LoopSpec::new("front").edge(2, door), LoopSpec::new("back").role(ORACLE, oracle)];
    let running = Runtime::start(options(), None, loops).unwrap();
    let mut client = std::net::TcpStream::connect(bound.recv().unwrap()).unwrap();
    client.write_all(b"??").unwrap();
    assert_eq!((heard.recv().unwrap(), heard.recv().unwrap()), ("asked", "asked"));
    running.stop().unwrap();
    assert_eq!(heard.iter().collect::<Vec<_>>(), ["answered", "stop"]);

    let (said, heard) = channel();
    let watcher = Acts(move |_, event, _: &mut Outbox<Msg>| {
        if let Event::Stop = event {
            said.send(()).unwrap();
        }
    });
    let halts = Acts(|_, _, out: &mut Outbox<Msg>| out.halt("enough"));
    let loops = vec![LoopSpec::new("a").role(1, watcher), LoopSpec::new("b").role(2, halts)];
    let running = Runtime::start(options(), None, loops).unwrap();
    assert_eq!(reason(running.stop()), "acts: enough");
    assert!(heard.recv().is_err(), "a node that halts is not in good order");
}

#[test]
fn a_role_that_never_finishes_does_not_hold_up_a_stop_for_ever() {
    let (directory, log, go) = watched();
    let (alive, gone) = channel::<()>();
    let role = Acts(move |_, event, out: &mut Outbox<Msg>| {
        let _ = &alive;
        match event {
            Event::Stop => out.disk(request(1, [write("a", 0), sync("a")])),
            Event::Disk(done) => panic!("{done:?}"),
            _ => {}
        }
    });
    let options = Options { drain: Duration::from_millis(30), ..options() };
    let spec = LoopSpec::new("a").role(1, role);
    let running = Runtime::start(options, Some(Disk::new(directory)), vec![spec]).unwrap();
    running.handle().stop();
    // The loop ends although the disk has not answered. What was asked of it is done all the same.
    assert!(gone.recv().is_err());
    go.send(()).unwrap();
    running.wait().unwrap();
    assert_eq!(log.lock().unwrap().len(), 2);
}

#[test]
fn a_panic_of_a_disk_on_the_loop_stops_the_whole_node_and_names_who_asked() {
    #[derive(Clone)]
    struct Crashes(Arc<Mutex<u32>>);
    impl Directory for Crashes {
        fn list(&self) -> Result<Vec<(String, u64)>, DiskError> {
            unreachable!()
        }
        fn read(&self, _: &str, _: u64, _: usize) -> Result<Vec<u8>, DiskError> {
            unreachable!()
        }
        fn apply(&mut self, _: &DiskOp) -> Result<(), DiskError> {
            assert_ne!(thread::current().name(), Some("loop"), "head crash");
            *self.0.lock().unwrap() += 1;
            Ok(())
        }
    }
    let role = Acts(|_, _, out: &mut Outbox<Msg>| out.disk(request(1, [write("a", 0), sync("a")])));
    let spec = LoopSpec::new("loop").role(1, role);
    let disk = Disk::new(Crashes(Arc::default()));
    let running = Runtime::start(options(), Some(disk), vec![spec]).unwrap();
    let reason = reason(running.wait());
    assert!(reason.starts_with("acts on loop loop panicked") && reason.contains("head crash"), "{reason}");
}

#[test]
fn dropping_a_node_ends_it() {
    let (alive, ended) = channel::<()>();
    let role = Acts(move |_, _, out: &mut Outbox<Msg>| {
        let _ = &alive;
        out.set_timer(TimerId(1), Micros(0));
    });
    drop(Runtime::start(options(), None, vec![LoopSpec::new("a").role(1, role)]).unwrap());
    assert!(ended.recv().is_err(), "the role has been dropped");
}

fn refused<T: Debug>(result: Result<T, StartError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn mistakes_in_the_wiring_are_refused() {
    assert!(refused(Runtime::start::<Msg>(options(), None, Vec::new())).contains("at least one loop"));
    let twice = vec![LoopSpec::new("a").role(1, echo()), LoopSpec::new("b").role(1, echo())];
    assert!(refused(Runtime::start(options(), None, twice)).contains("number 1"));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let edge = Door::new(taken.local_addr().unwrap()).0;
    let message = refused(Runtime::start(options(), None, vec![LoopSpec::new("a").edge(1, edge)]));
    assert!(message.contains("cannot start door"), "{message}");
}

/// The role that doors ask.
const ORACLE: u16 = 1;

/// A server of one byte a request: it asks the oracle and writes the answer's number back.
struct Door {
    address: SocketAddr,
    bound: Sender<SocketAddr>,
    listener: Option<TcpListener>,
    registry: Option<Registry>,
    tokens: Option<Tokens>,
    clients: Vec<Option<TcpStream>>,
    /// Answers to write at the end of the turn: client and byte.
    answers: Vec<(usize, u8)>,
    asked: usize,
    stopping: bool,
}

impl Door {
    fn new(address: SocketAddr) -> (Door, Receiver<SocketAddr>) {
        let (bound, at) = channel();
        let door = Door {
            address,
            bound,
            listener: None,
            registry: None,
            tokens: None,
            clients: Vec::new(),
            answers: Vec::new(),
            asked: 0,
            stopping: false,
        };
        (door, at)
    }

    fn accept(&mut self) {
        let (Some(listener), Some(registry), Some(tokens)) = (&self.listener, &self.registry, self.tokens)
        else {
            return;
        };
        while let Ok((mut client, _)) = listener.accept() {
            let token = tokens.token(1 + self.clients.len());
            registry.register(&mut client, token, Interest::READABLE).unwrap();
            self.clients.push(Some(client));
        }
    }

    fn read(&mut self, client: usize, out: &mut Outbox<Msg>) {
        let mut buffer = [0; 16];
        loop {
            let Some(stream) = &mut self.clients[client] else { return };
            match stream.read(&mut buffer) {
                Ok(0) => self.clients[client] = None,
                Ok(count) if !self.stopping => {
                    self.asked += count;
                    buffer[..count].iter().for_each(|_| out.send(at(ORACLE), Msg::Ping(client as u64)));
                }
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    return;
                }
            }
        }
    }
}

impl Role for Door {
    type Message = Msg;

    fn handle(&mut self, _now: Now, event: Event<Msg>, _out: &mut Outbox<Msg>) {
        if let Event::Message { message: Msg::Pong(client), .. } = event {
            self.answers.push((client as usize, b'!'));
        }
    }

    fn name(&self) -> &'static str {
        "door"
    }
}

impl Edge for Door {
    fn register(&mut self, registry: Registry, tokens: Tokens) -> io::Result<()> {
        let mut listener = TcpListener::bind(self.address)?;
        registry.register(&mut listener, tokens.token(0), Interest::READABLE)?;
        self.bound.send(listener.local_addr()?).unwrap();
        self.listener = Some(listener);
        self.registry = Some(registry);
        self.tokens = Some(tokens);
        Ok(())
    }

    fn ready(&mut self, event: &mio::event::Event, _now: Now, out: &mut Outbox<Msg>) {
        match self.tokens.unwrap().number(event.token()) {
            0 => self.accept(),
            client => self.read(client - 1, out),
        }
    }

    fn flush(&mut self, _now: Now, _out: &mut Outbox<Msg>) {
        for (client, answer) in self.answers.drain(..) {
            self.asked -= 1;
            if let Some(stream) = &mut self.clients[client] {
                stream.write_all(&[answer]).unwrap();
            }
        }
    }

    fn stop(&mut self, _now: Now, _out: &mut Outbox<Msg>) {
        self.stopping = true;
        self.listener = None;
    }

    fn drained(&self) -> bool {
        self.asked == 0
    }
}

#[test]
fn an_edge_serves_clients_and_a_stop_lets_it_finish_what_was_begun() {
    let (heard, hears) = channel();
    let mut asked = Vec::new();
    // Answers late, so that the stop comes in between; the first of a client at once.
    let oracle = Acts(move |_, event, out: &mut Outbox<Msg>| match event {
        Event::Message { from, message: Msg::Ping(client) } => {
            asked.push((from, client));
            out.set_timer(TimerId(1), Micros::from_millis(if asked.len() == 1 { 0 } else { 40 }));
            heard.send(()).unwrap();
        }
        Event::Timer(_) => asked.iter().for_each(|(from, client)| out.send(*from, Msg::Pong(*client))),
        _ => {}
    });
    let (door, bound) = Door::new("127.0.0.1:0".parse().unwrap());
    let loops = vec![LoopSpec::new("front").edge(2, door), LoopSpec::new("back").role(ORACLE, oracle)];
    let running = Runtime::start(options(), None, loops).unwrap();
    let address = bound.recv().unwrap();
    let mut client = std::net::TcpStream::connect(address).unwrap();
    client.write_all(b"?").unwrap();
    hears.recv().unwrap();
    running.stop().unwrap();
    // The answer to what was asked before the stop, then the end.
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"!");
    assert!(std::net::TcpStream::connect(address).is_err());
}

/// Makes its own load: a ping a turn, as long as it wants.
struct Load {
    left: u64,
    answered: u64,
    flushed_after: u64,
    done: Sender<u64>,
    forever: bool,
}

impl Role for Load {
    type Message = Msg;

    fn handle(&mut self, _now: Now, event: Event<Msg>, _out: &mut Outbox<Msg>) {
        if let Event::Message { message: Msg::Pong(_), .. } = event {
            self.answered += 1;
        }
    }

    fn name(&self) -> &'static str {
        "load"
    }
}

impl Edge for Load {
    fn register(&mut self, _registry: Registry, _tokens: Tokens) -> io::Result<()> {
        Ok(())
    }

    fn ready(&mut self, _event: &mio::event::Event, _now: Now, _out: &mut Outbox<Msg>) {}

    fn turn(&mut self, _now: Now, out: &mut Outbox<Msg>) -> Turn {
        if self.left == 0 {
            return Turn::Idle;
        }
        self.left -= 1;
        out.send(at(ORACLE), Msg::Ping(self.left));
        Turn::Again
    }

    fn flush(&mut self, _now: Now, _out: &mut Outbox<Msg>) {
        if self.answered > self.flushed_after {
            self.flushed_after = self.answered;
            self.done.send(self.answered).unwrap();
        }
    }

    fn stop(&mut self, _now: Now, _out: &mut Outbox<Msg>) {}

    fn drained(&self) -> bool {
        !self.forever
    }
}

/// A client of a node that has halted must not get an answer that was made up before the node knew.
#[test]
fn an_edge_sends_nothing_once_the_node_has_halted() {
    let mut from_door = None;
    let oracle = Acts(move |_, event, out: &mut Outbox<Msg>| match event {
        Event::Message { from, message: Msg::Ping(client) } => {
            out.send(from, Msg::Pong(client));
            // The answer is under way when this fires, in the same turn.
            from_door = Some(from);
            out.send(at(ORACLE), Msg::Pong(0));
        }
        Event::Message { .. } => out.halt(format!("{from_door:?} asked too much")),
        _ => {}
    });
    let (door, bound) = Door::new("127.0.0.1:0".parse().unwrap());
    let running =
        Runtime::start(options(), None, vec![LoopSpec::new("a").role(ORACLE, oracle).edge(2, door)]).unwrap();
    let mut client = std::net::TcpStream::connect(bound.recv().unwrap()).unwrap();
    client.write_all(b"?").unwrap();
    assert!(reason(running.wait()).contains("asked too much"));
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"");
}

#[test]
fn an_edge_that_wants_another_turn_gets_it_without_an_event() {
    let (done, answered) = channel();
    let load = Load { left: 1_000, answered: 0, flushed_after: 0, done, forever: false };
    let loops = vec![LoopSpec::new("a").edge(2, load).role(ORACLE, echo())];
    let running = Runtime::start(options(), None, loops).unwrap();
    assert_eq!(answered.iter().find(|n| *n == 1_000), Some(1_000));
    running.stop().unwrap();
}

#[test]
fn an_edge_that_never_finishes_does_not_hold_up_a_stop_for_ever() {
    let (done, _answered) = channel();
    let load = Load { left: 0, answered: 0, flushed_after: 0, done, forever: true };
    let loops = vec![LoopSpec::new("a").edge(2, load), LoopSpec::new("b").role(ORACLE, echo())];
    let options = Options { drain: Duration::from_millis(30), ..options() };
    Runtime::start(options, None, loops).unwrap().stop().unwrap();
}

#[test]
fn a_loop_that_hangs_is_named_and_left_behind() {
    let (held, release) = channel::<()>();
    let role = Acts(move |_, event, _: &mut Outbox<Msg>| {
        if matches!(event, Event::Stop) {
            // For as long as the test likes.
            assert!(release.recv().is_err());
        }
    });
    let loops = vec![LoopSpec::new("stuck").role(5, role), LoopSpec::new("b").role(ORACLE, echo())];
    let options = Options { drain: Duration::from_millis(30), ..options() };
    let stopped = reason(Runtime::start(options, None, loops).unwrap().stop());
    assert!(stopped.contains("the thread stuck does not end"), "{stopped}");
    drop(held);
}

#[test]
fn memory_comes_in_small_pages_while_a_role_says_that_it_grows() {
    const ASK: TimerId = TimerId(0);
    let is_small = || rustix::thread::transparent_huge_pages_are_disabled().unwrap();
    let before = is_small();
    let run = |says: &'static [bool]| {
        let (tell, told) = channel();
        // What it says counts once it has returned.
        let mut rest = says.iter();
        let role = Acts(move |_, event, out: &mut Outbox<Msg>| {
            if matches!(event, Event::Timer(_)) {
                tell.send(rustix::thread::transparent_huge_pages_are_disabled().unwrap()).unwrap();
            }
            if matches!(event, Event::Start | Event::Timer(_))
                && let Some(grows) = rest.next()
            {
                out.memory_grows(*grows);
                out.set_timer(ASK, Micros(0));
            }
        });
        let running = Runtime::start(options(), None, vec![LoopSpec::new("a").role(1, role)]).unwrap();
        let seen: Vec<bool> = says.iter().map(|_| told.recv().unwrap()).collect();
        running.stop().unwrap();
        seen
    };
    assert_eq!(run(&[true, true, false, true]), [true, true, before, true]);
    assert_eq!(is_small(), before, "nobody is left who says so");
}
