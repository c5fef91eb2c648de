//! Ends of a node: stops, halts, panics, and starts that are refused.

use crate::disk::{request, sync, watched, write, writer};
use crate::edges::{ByteServer, ORACLE};
use crate::*;

/// Why a node has halted.
pub(crate) fn reason(ended: Result<(), Stopped>) -> String {
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
pub(crate) fn stopped_by(act: impl FnMut(Now, Event<Msg>, &mut Outbox<Msg>) + Send + 'static) -> String {
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
    let (server, bound) = ByteServer::new("127.0.0.1:0".parse().unwrap());
    let loops = vec![LoopSpec::new("front").edge(2, server), LoopSpec::new("back").role(ORACLE, oracle)];
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

pub(crate) fn refused<T: Debug>(result: Result<T, StartError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn mistakes_in_the_wiring_are_refused() {
    assert!(refused(Runtime::start::<Msg>(options(), None, Vec::new())).contains("at least one loop"));
    let twice = vec![LoopSpec::new("a").role(1, echo()), LoopSpec::new("b").role(1, echo())];
    assert!(refused(Runtime::start(options(), None, twice)).contains("number 1"));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let edge = ByteServer::new(taken.local_addr().unwrap()).0;
    let message = refused(Runtime::start(options(), None, vec![LoopSpec::new("a").edge(1, edge)]));
    assert!(message.contains("cannot start server"), "{message}");
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
