//! Disk requests: their order, their faults, and the loop that syncs by itself.

use crate::*;

/// What a [`Watched`] directory was asked for, and by which thread.
pub(crate) type Log = Arc<Mutex<Vec<(String, String)>>>;

/// A directory that writes down what it is asked for, waits at every sync until it is told to go on, and finds
/// files whose name begins with `full` too large.
#[derive(Clone)]
pub(crate) struct Watched {
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

pub(crate) fn watched() -> (Watched, Log, Sender<()>) {
    let (go, wait) = channel();
    let log = Log::default();
    (Watched { log: log.clone(), go: Arc::new(Mutex::new(wait)) }, log, go)
}

pub(crate) fn write(file: &str, offset: u64) -> DiskOp {
    DiskOp::Write { file: file.to_owned(), offset, data: vec![Bytes::from(vec![7; 10])] }
}

pub(crate) fn sync(file: &str) -> DiskOp {
    DiskOp::Sync { file: file.to_owned() }
}

pub(crate) fn request(token: u64, ops: impl Into<Vec<DiskOp>>) -> DiskRequest {
    DiskRequest::new(token, ops.into())
}

/// Reports what the disk answers; makes `requests` at its start.
pub(crate) fn writer<T: Send + 'static>(
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

/// What was done on which thread: of a disk that takes no time.
#[derive(Clone)]
pub(crate) struct Timeless(Sender<(String, usize)>);

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
