//! A log without members: it is given events and its outbox is looked at.

use ordain_log::{LogConfig, LogWriter, MemoryDirectory, carry_out};
use ordain_model::Epoch;
use ordain_role::{Address, Bytes, Directory, DiskOp, Event, NodeId, Now, Outbox, Role, TimerId};

use crate::entry::EntryType as _;
use crate::tests::{Log, Message, Note, Notes};
use crate::{InputLog, LogSettings, RESERVE, resume_after};

const SEQUENCER: Address = at(0);
const SHARDS: [Address; 2] = [at(16), at(17)];
/// The sizes of a note that has to be durable, and of one that need not be.
const WRITE: u64 = 10;
const READ: u64 = 0;

const fn at(role: u16) -> Address {
    Address { node: NodeId(0), role }
}

fn note(epoch: u64, size: u64) -> Note {
    Note::of_size(epoch, epoch, size)
}

struct LogBench {
    log: InputLog<Notes, Message>,
    directory: MemoryDirectory,
    disk: Vec<ordain_role::DiskRequest>,
}

impl LogBench {
    fn new(settings: LogSettings) -> LogBench {
        let mut directory = MemoryDirectory::new();
        let config = LogConfig { segment_bytes: 1024, ..LogConfig::new("test") };
        let (writer, _) = LogWriter::open(&mut directory, config, |_| Ok(())).unwrap();
        let log = InputLog::new(settings, Some(writer), SEQUENCER, SHARDS.to_vec());
        LogBench { log, directory, disk: Vec::new() }
    }

    fn event(&mut self, event: Event<Message>) -> Vec<String> {
        let mut out = Outbox::default();
        self.log.handle(Now::default(), event, &mut out);
        self.log.check().unwrap();
        assert_eq!(out.halt, None);
        self.disk.extend(out.disk);
        out.sends
            .into_iter()
            .map(|(to, message)| match message {
                Message::Log(Log::Logged(epoch)) if to == SEQUENCER => {
                    format!("logged {epoch}")
                }
                Message::Log(Log::Sealed(b)) => format!("sealed {} to {}", b.epoch, to.role),
                Message::Log(Log::Rejected(b)) => format!("rejected {}", b.epoch),
                Message::Log(Log::Writable) => "writable".to_string(),
                Message::Log(Log::Confirmed { n, term }) => format!("confirmed {n} term {term}"),
                Message::Log(Log::NotConfirmed { n }) => format!("not confirmed {n}"),
                other => panic!("{other:?} to {to:?}"),
            })
            .collect()
    }

    fn append(&mut self, note: Note) -> Vec<String> {
        let message = Log::Append(note).into();
        self.event(Event::Message { from: SEQUENCER, message })
    }

    /// Carries out all disk work.
    fn disk(&mut self) -> Vec<String> {
        let mut sent = Vec::new();
        while !self.disk.is_empty() {
            let done = carry_out(&mut self.directory, &self.disk.remove(0));
            sent.extend(self.event(Event::Disk(done)));
        }
        sent
    }

    fn entries(mut self) -> Vec<u64> {
        self.directory.crash(|| 0);
        let config = LogConfig { segment_bytes: 1024, ..LogConfig::new("test") };
        let mut epochs = Vec::new();
        LogWriter::open(&mut self.directory, config, |entry| {
            assert_eq!(Notes::decode(&(), &entry.payload)?.epoch, entry.epoch);
            epochs.push(entry.epoch.0);
            Ok(())
        })
        .unwrap();
        epochs
    }
}

fn dispatched(epoch: u64) -> Vec<String> {
    vec![format!("logged {epoch}"), format!("sealed {epoch} to 16"), format!("sealed {epoch} to 17")]
}

#[test]
fn reads_wait_for_the_writes_before_them_and_are_not_logged() {
    let mut bench = LogBench::new(LogSettings::default());
    assert_eq!(bench.append(note(1, READ)), dispatched(1));
    assert!(bench.append(note(2, WRITE)).is_empty());
    assert!(bench.append(note(3, READ)).is_empty());
    assert_eq!(bench.disk(), [dispatched(2), dispatched(3)].concat());
    assert_eq!(bench.entries(), [2]);
}

#[test]
fn an_epoch_is_named_before_the_reserve_is_used_up() {
    let mut bench = LogBench::new(LogSettings::default());
    bench.append(note(1, WRITE));
    bench.disk();
    assert_eq!(bench.append(note(RESERVE, READ)), dispatched(RESERVE));
    // This one might be given again after a restart, if the log did not know of it.
    assert!(bench.append(note(1 + RESERVE, READ)).is_empty());
    assert_eq!(bench.disk(), dispatched(1 + RESERVE));
    assert_eq!(bench.append(note(2 + RESERVE, READ)), dispatched(2 + RESERVE));
    assert!(resume_after(Epoch(1 + RESERVE)) >= Epoch(2 + RESERVE));
    assert_eq!(bench.entries(), [1, 1 + RESERVE]);
}

#[test]
fn a_log_that_dispatches_early_still_writes() {
    let mut bench = LogBench::new(LogSettings { dispatch_early: true, ..LogSettings::default() });
    assert_eq!(bench.append(note(1, WRITE)), dispatched(1));
    assert!(bench.disk().is_empty());
    assert_eq!(bench.entries(), [1]);
    // And one that keeps nothing dispatches everything.
    let mut none: InputLog<Notes, Message> =
        InputLog::new(LogSettings::default(), None, SEQUENCER, SHARDS.to_vec());
    let mut out = Outbox::default();
    let message = Log::Append(note(1, WRITE)).into();
    none.handle(Now::default(), Event::Message { from: SEQUENCER, message }, &mut out);
    assert_eq!((out.sends.len(), out.disk.len()), (3, 0));
}

#[test]
fn a_full_disk_rejects_and_is_tried_again() {
    let mut bench = LogBench::new(LogSettings::default());
    bench.append(note(1, WRITE));
    bench.disk();
    bench.directory.set_full_from(Some(0));
    assert!(bench.append(note(2, WRITE)).is_empty());
    assert!(bench.disk().is_empty(), "nobody is told before the disk is clean");
    assert!(bench.event(Event::Timer(TimerId(1))).is_empty());
    assert!(bench.disk().is_empty());
    bench.directory.set_full_from(None);
    bench.event(Event::Timer(TimerId(1)));
    assert_eq!(bench.disk(), ["rejected 2"]);
    assert_eq!(bench.event(Event::Timer(TimerId(1))), ["writable"]);
    // The epoch is free again.
    assert!(bench.append(note(2, WRITE)).is_empty());
    assert_eq!(bench.disk(), dispatched(2));
    assert_eq!(bench.entries(), [1, 2]);
}

/// How many bits of what the log has written can be flipped without the next start refusing the log, and the
/// fewest notes that are left then.
fn flips_not_refused(directory: &MemoryDirectory) -> (usize, u64) {
    let config = || LogConfig { segment_bytes: 1024, ..LogConfig::new("test") };
    let count = |directory: &mut MemoryDirectory| {
        let mut count = 0;
        let opened = LogWriter::open(directory, config(), |_| {
            count += 1;
            Ok(())
        });
        opened.ok().map(|_| count)
    };
    let (mut accepted, mut fewest) = (0, u64::MAX);
    for (file, len) in directory.list().unwrap() {
        let bytes = directory.read(&file, 0, len as usize).unwrap();
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        for (offset, bit) in (512..end).flat_map(|offset| (0..8).map(move |bit| (offset, bit))) {
            let mut damaged = directory.clone();
            let data = vec![Bytes::from(vec![bytes[offset] ^ (1 << bit)])];
            damaged.apply(&DiskOp::Write { file: file.clone(), offset: offset as u64, data }).unwrap();
            if let Some(left) = count(&mut damaged) {
                accepted += 1;
                fewest = fewest.min(left);
            }
        }
    }
    (accepted, fewest)
}

#[test]
fn a_clean_stop_marks_the_log_so_that_no_batch_can_be_cut_from_it() {
    let mut bench = LogBench::new(LogSettings::default());
    for epoch in 1..=3 {
        bench.append(note(epoch, WRITE));
        bench.disk();
    }
    // After a crash, the last batch may have been torn, for all that is known.
    assert_eq!(flips_not_refused(&bench.directory).1, 2);
    // One more is under way when the word comes: it is brought to its end first.
    bench.append(note(4, WRITE));
    assert!(bench.event(Event::Stop).is_empty());
    assert_eq!(bench.disk(), dispatched(4));
    // All that a flipped bit can take now is the mark itself: 48 bytes.
    let (accepted, fewest) = flips_not_refused(&bench.directory);
    assert_eq!(fewest, 4);
    assert!(accepted <= 48 * 8, "{accepted}");
    // What still comes is not taken: nothing may stand behind the mark.
    assert!(bench.append(note(5, WRITE)).is_empty());
    assert!(bench.append(note(6, READ)).is_empty());
    assert!(bench.disk.is_empty());
    assert_eq!(bench.entries(), [1, 2, 3, 4]);
}

#[test]
fn a_stop_of_a_log_that_is_marked_or_empty_or_kept_nowhere_asks_for_nothing() {
    let mut bench = LogBench::new(LogSettings::default());
    bench.event(Event::Stop);
    assert!(bench.disk.is_empty());

    let mut bench = LogBench::new(LogSettings::default());
    bench.append(note(1, WRITE));
    bench.disk();
    bench.event(Event::Timer(TimerId(2)));
    assert_eq!(bench.disk.len(), 1, "the mark of a log that is idle");
    bench.disk();
    bench.event(Event::Stop);
    assert!(bench.disk.is_empty());

    let mut none: InputLog<Notes, Message> =
        InputLog::new(LogSettings::default(), None, SEQUENCER, SHARDS.to_vec());
    let mut out = Outbox::default();
    none.handle(Now::default(), Event::Stop, &mut out);
    assert!(out.is_empty());
}

#[test]
fn a_stop_on_a_full_disk_waits_for_nothing() {
    let mut bench = LogBench::new(LogSettings::default());
    bench.append(note(1, WRITE));
    bench.disk();
    bench.directory.set_full_from(Some(0));
    bench.append(note(2, WRITE));
    assert!(bench.disk().is_empty());
    bench.event(Event::Stop);
    assert!(bench.disk.is_empty());
    bench.directory.set_full_from(None);
    assert!(bench.entries().starts_with(&[1]));
}

#[test]
fn a_failing_disk_and_epochs_out_of_order_stop_the_log() {
    let mut bench = LogBench::new(LogSettings::default());
    bench.append(note(5, WRITE));
    bench.directory.fail_syncs(true);
    let done = carry_out(&mut bench.directory, &bench.disk.remove(0));
    let mut out = Outbox::default();
    bench.log.handle(Now::default(), Event::Disk(done), &mut out);
    assert!(out.halt.is_some() && out.sends.is_empty());

    let mut bench = LogBench::new(LogSettings::default());
    bench.append(note(5, WRITE));
    let mut out = Outbox::default();
    let message = Log::Append(note(5, WRITE)).into();
    bench.log.handle(Now::default(), Event::Message { from: SEQUENCER, message }, &mut out);
    assert!(out.halt.is_some());
}

#[test]
fn a_log_without_members_confirms_at_once_until_its_node_stops() {
    let mut bench = LogBench::new(LogSettings::default());
    bench.append(note(1, WRITE));
    let confirm = |n| Event::Message { from: SEQUENCER, message: Log::Confirm(n).into() };
    assert_eq!(bench.event(confirm(1)), ["confirmed 1 term 0"]);
    bench.event(Event::Stop);
    assert_eq!(bench.event(confirm(2)), ["not confirmed 2"]);
}
