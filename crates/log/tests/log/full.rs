//! A disk that is full or read-only, entries of any size, and the removal of what is no longer needed.

use crate::support::*;
use ordain_log::{
    AppendError, Durability, LogConfig, LogError, LogWriter, MemoryDirectory, Progress, trim, verify,
};
use ordain_model::Epoch;
use ordain_role::{Bytes, Directory, DiskDone, DiskError, DiskOp, DiskRequest};

#[test]
fn entries_come_back_in_order_over_many_segments() {
    for durability in [Durability::Fsync, Durability::Os] {
        let config = LogConfig { durability, ..config() };
        let mut disk = MemoryDirectory::new();
        let (mut writer, recovered, _) = open(&mut disk, config.clone()).unwrap();
        assert!(recovered.created);
        let mut written = Entries::new();
        for (epoch, len) in (1..200).map(|i| (i * 3, i * 7 % 300)).chain([(900, 0), (901, 20_000), (902, 1)])
        {
            written.push((epoch, payload(epoch, len)));
            append(&mut writer, epoch, &written[written.len() - 1].1);
            if epoch % 2 == 0 {
                assert_eq!(settle(&mut disk, &mut writer), Some(Progress::Durable(Epoch(epoch))));
            }
        }
        writer.mark();
        settle(&mut disk, &mut writer);
        assert!(writer.is_idle() && writer.stats().segments > 10 && writer.stats().pending_bytes == 0);
        let report = verify(&disk, None).unwrap();
        assert_eq!((report.entries, report.last_epoch, report.torn), (202, Epoch(902), None));
        assert_eq!(report.segments, writer.stats().segments);
        for _ in 0..3 {
            let (_, recovered, found) = open(&mut disk, config.clone()).unwrap();
            assert_eq!(found, written);
            assert_eq!((recovered.created, recovered.torn), (false, None));
        }
    }
}

#[test]
fn a_huge_first_entry_makes_the_empty_segment_grow() {
    let mut disk = MemoryDirectory::new();
    let (mut writer, _, _) = open(&mut disk, config()).unwrap();
    append(&mut writer, 1, &payload(1, 1 << 20));
    append(&mut writer, 2, &payload(2, 10));
    assert_eq!(settle(&mut disk, &mut writer), Some(Progress::Durable(Epoch(2))));
    let (_, _, found) = open(&mut disk, config()).unwrap();
    assert_eq!(found, [(1, payload(1, 1 << 20)), (2, payload(2, 10))]);
}

#[test]
fn what_is_appended_meanwhile_goes_out_with_one_sync() {
    let mut disk = MemoryDirectory::new();
    let (mut writer, _, _) = open(&mut disk, LogConfig { segment_bytes: 1 << 16, ..config() }).unwrap();
    append(&mut writer, 1, b"first");
    let first = writer.next_request().unwrap();
    for epoch in 2..50 {
        append(&mut writer, epoch, b"meanwhile");
        assert!(writer.next_request().is_none(), "one request at a time");
    }
    assert_eq!(writer.done(&DiskDone { token: first.token + 1, result: Ok(()) }), None);
    let done = ordain_log::carry_out(&mut disk, &first);
    assert_eq!(writer.done(&done), Some(Progress::Durable(Epoch(1))));
    assert_eq!(writer.done(&done), None, "an answer counts once");
    let second = writer.next_request().unwrap();
    assert!(matches!(second.ops.as_slice(), [DiskOp::Write { .. }, DiskOp::Sync { .. }]));
    let done = ordain_log::carry_out(&mut disk, &second);
    assert_eq!(writer.done(&done), Some(Progress::Durable(Epoch(49))));
    assert!(writer.next_request().is_none());
    let order = writer.append(Epoch(49), 0, Vec::new());
    assert_eq!(order, Err(AppendError::Order { epoch: Epoch(49), last: Epoch(49) }));
}

/// Appends until done; when the disk is full, retries, or gives up some and goes on. Returns what must be found.
fn through_full(
    disk: &mut MemoryDirectory,
    writer: &mut LogWriter,
    random: &mut Random,
    full_at: u64,
) -> Entries {
    let mut kept = Entries::new();
    disk.set_full_from(Some(disk.ops() + full_at));
    for epoch in 1..40 {
        if random.below(10) == 0 {
            writer.truncate_before(Epoch(1));
        }
        kept.push((epoch, payload(epoch, random.below(900))));
        append(writer, epoch, &kept[kept.len() - 1].1);
        if random.below(2) == 0 {
            settle(disk, writer);
        }
        if writer.is_full() {
            assert!(writer.durable() < Epoch(epoch));
            match random.below(4) {
                // Still full.
                0 => writer.retry(),
                1 => {
                    let lost = writer.give_up();
                    assert_eq!(lost.last().map(|pending| pending.epoch), Some(Epoch(epoch)));
                    assert!(lost.iter().all(|pending| pending.epoch > writer.durable() && pending.term == 7));
                    kept.truncate(kept.len() - lost.len());
                    settle(disk, writer);
                    disk.set_full_from(None);
                    writer.retry();
                    settle(disk, writer);
                    disk.set_full_from(Some(disk.ops() + random.below(12)));
                }
                2 => {
                    disk.set_full_from(None);
                    writer.retry();
                    settle(disk, writer);
                    assert!(!writer.is_full());
                    disk.set_full_from(Some(disk.ops() + random.below(12)));
                }
                _ => {}
            }
        }
    }
    kept
}

#[test]
fn a_disk_full_at_every_operation_loses_nothing_and_keeps_nothing_given_up() {
    for full_at in 0..60 {
        for seed in 0..20 {
            let mut random = Random(seed);
            let mut disk = MemoryDirectory::new();
            let (mut writer, _, _) = open(&mut disk, config()).unwrap();
            let kept = through_full(&mut disk, &mut writer, &mut random, full_at);
            let durable = writer.durable();
            let crash = seed % 2 == 0;
            if crash {
                disk.crash(|| random.next());
            } else {
                disk.set_full_from(None);
                writer.retry();
                settle(&mut disk, &mut writer);
                assert_eq!(writer.durable(), Epoch(kept.last().map_or(0, |entry| entry.0)));
            }
            disk.set_full_from(None);
            let (_, _, found) = open(&mut disk, config())
                .unwrap_or_else(|why| panic!("full at {full_at}, seed {seed}: {why}"));
            if crash {
                // Entries that had just been given up may come back; those before must be there.
                let sure: Vec<_> = kept.iter().filter(|entry| entry.0 <= durable.0).collect();
                assert!(
                    found.iter().zip(&sure).all(|(found, sure)| found == *sure) && found.len() >= sure.len()
                );
            } else {
                assert_eq!(found, kept, "full at {full_at}, seed {seed}");
            }
        }
    }
}

#[test]
fn a_log_opens_and_reads_on_a_full_disk() {
    let mut disk = MemoryDirectory::new();
    let (mut writer, _, _) = open(&mut disk, config()).unwrap();
    disk.set_capacity(Some(2048));
    append(&mut writer, 1, &payload(1, 1300));
    settle(&mut disk, &mut writer);
    append(&mut writer, 2, &payload(2, 1300));
    let full = settle(&mut disk, &mut writer);
    assert_eq!(full, Some(Progress::Full { file: "log-0000000000000002.seg".into() }));
    let (mut writer, _, found) = open(&mut disk, config()).unwrap();
    assert_eq!(found, [(1, payload(1, 1300))]);
    append(&mut writer, 2, &payload(2, 1300));
    assert!(matches!(settle(&mut disk, &mut writer), Some(Progress::Full { .. })));
    disk.set_capacity(None);
    writer.retry();
    assert_eq!(settle(&mut disk, &mut writer), Some(Progress::Durable(Epoch(2))));
}

#[test]
fn a_read_only_directory_is_refused() {
    let mut disk = MemoryDirectory::new();
    disk.set_read_only(true);
    let refused = open(&mut disk, config()).err();
    assert!(matches!(refused, Some(LogError::Disk(DiskError::ReadOnly { .. }))), "{refused:?}");
    disk.set_read_only(false);
    let (mut writer, _, _) = open(&mut disk, config()).unwrap();
    disk.set_read_only(true);
    append(&mut writer, 1, b"x");
    assert!(matches!(settle(&mut disk, &mut writer), Some(Progress::Failed { .. })));
    assert!(verify(&disk, None).is_ok(), "looking needs no permission to write");
}

#[test]
fn old_segments_are_removed_whole() {
    let mut disk = MemoryDirectory::new();
    let (mut writer, _, _) = open(&mut disk, config()).unwrap();
    for epoch in 1..=60 {
        append(&mut writer, epoch, &payload(epoch, 300));
        settle(&mut disk, &mut writer);
    }
    let segments = writer.stats().segments;
    let (begins, end) = (writer.begins(), writer.place());
    assert!(!writer.can_trim_to(begins) && writer.can_trim_to(end));
    writer.truncate_before(Epoch(30));
    // What is to go must not be read any more, from now on.
    let trimmed = writer.begins();
    assert!(begins < trimmed && trimmed < end && !writer.can_trim_to(trimmed));
    settle(&mut disk, &mut writer);
    assert_eq!(writer.begins(), trimmed);
    assert!(writer.stats().segments < segments);
    let (_, recovered, found) = open(&mut disk, config()).unwrap();
    let first = found[0].0;
    assert!(first <= 30 && first > 20, "{first}");
    assert_eq!(recovered.starts_after, Epoch(first - 1));
    assert_eq!(found.last().map(|entry| entry.0), Some(60));

    // The tool does the same to a log at rest, and leaves the last segment.
    let removed = trim(&mut disk, None, Epoch(1000)).unwrap();
    assert!(!removed.is_empty());
    assert_eq!(segment_files(&disk).len(), 1);
    let (mut writer, recovered, found) = open(&mut disk, config()).unwrap();
    assert_eq!((recovered.last_epoch, found.last().map(|entry| entry.0)), (Epoch(60), Some(60)));
    writer.append(Epoch(61), 0, vec![Bytes::from(b"goes on".to_vec())]).unwrap();
    assert_eq!(settle(&mut disk, &mut writer), Some(Progress::Durable(Epoch(61))));
}

#[test]
fn entries_do_not_wait_for_segments_that_are_removed() {
    let mut disk = MemoryDirectory::new();
    let (mut writer, _, _) = open(&mut disk, config()).unwrap();
    for epoch in 1..=60 {
        append(&mut writer, epoch, &payload(epoch, 300));
        settle(&mut disk, &mut writer);
    }
    let before = segment_files(&disk);
    writer.truncate_before(Epoch(60));
    let removal = writer.next_request().unwrap();
    assert!(
        removal.in_background && matches!(&removal.ops[..], [DiskOp::Remove { file }] if *file == before[0])
    );
    // While it is on its way there is no other, and the log goes on, from segment to segment.
    for epoch in 61..=80 {
        append(&mut writer, epoch, &payload(epoch, 300));
        assert_eq!(settle(&mut disk, &mut writer), Some(Progress::Durable(Epoch(epoch))));
        assert!(writer.is_idle());
    }
    assert!(segment_files(&disk).len() > before.len());
    // The second goes only when it is durable that the first is gone.
    writer.done(&ordain_log::carry_out(&mut disk, &removal));
    let sync = writer.next_request().unwrap();
    assert!(sync.in_background && matches!(sync.ops[..], [DiskOp::SyncDirectory]));
    assert!(writer.next_request().is_none());
    writer.done(&ordain_log::carry_out(&mut disk, &sync));
    settle(&mut disk, &mut writer);
    let (_, _, found) = open(&mut disk, config()).unwrap();
    assert!(found[0].0 > 40 && found.last().map(|entry| entry.0) == Some(80), "{}", found[0].0);
}

/// The syncs of a new segment take as long as they like: entries go on, and only the segment after it waits.
#[test]
fn without_syncs_entries_do_not_wait_until_a_new_segment_is_durable() {
    let mut disk = MemoryDirectory::new();
    let config = || LogConfig { durability: Durability::Os, ..config() };
    let (mut writer, _, _) = open(&mut disk, config()).unwrap();
    let mut settling: Option<DiskRequest> = None;
    let mut epoch = 0;
    let mut waits = |disk: &mut MemoryDirectory, writer: &mut LogWriter| {
        // Until an entry waits: for the segment after the one that is being synced.
        loop {
            while let Some(request) = writer.next_request() {
                if request.in_background && matches!(request.ops[0], DiskOp::Sync { .. }) {
                    assert!(settling.replace(request).is_none());
                } else {
                    let syncs = |op: &DiskOp| matches!(op, DiskOp::Sync { .. } | DiskOp::SyncDirectory);
                    assert!(!request.ops.iter().any(syncs));
                    writer.done(&ordain_log::carry_out(disk, &request));
                }
            }
            if writer.durable() < writer.appended() {
                break;
            }
            epoch += 1;
            append(writer, epoch, &payload(epoch, 300));
        }
        settling.take().unwrap()
    };
    for segments in 2..6 {
        let request = waits(&mut disk, &mut writer);
        assert_eq!((writer.stats().segments, writer.stats().pending_entries), (segments, 1));
        let [DiskOp::Sync { file }, DiskOp::SyncDirectory, DiskOp::Write { .. }] = &request.ops[..] else {
            panic!("{request:?}")
        };
        assert_eq!(Some(file), segment_files(&disk).last());
        if segments == 4 {
            let full = DiskError::Full { file: file.clone() };
            let done = DiskDone { token: request.token, result: Err(full) };
            assert!(matches!(writer.done(&done), Some(Progress::Full { .. })));
            assert_eq!(
                (writer.give_up().len(), writer.is_full()),
                (1, true),
                "what found no space was not the entry"
            );
            assert!(writer.next_request().is_none());
            writer.retry();
            writer.next_request().into_iter().for_each(|again| {
                assert!(again.in_background && matches!(again.ops[0], DiskOp::Sync { .. }));
                writer.done(&ordain_log::carry_out(&mut disk, &again));
            });
        } else {
            writer.done(&ordain_log::carry_out(&mut disk, &request));
        }
    }
    settle(&mut disk, &mut writer);
    let durable = writer.durable();
    let (_, recovered, found) = open(&mut disk, config()).unwrap();
    assert_eq!((recovered.torn, found.last().map(|entry| Epoch(entry.0))), (None, Some(durable)));
}

/// The file of the next segment is made when half of the current one is written, and nobody waits for that. When it is
/// needed it has only to be renamed; what is left of it at a start is removed.
#[test]
fn the_file_of_the_next_segment_is_made_ahead() {
    let made_ahead = |op: &DiskOp| matches!(op, DiskOp::Create { file, len: 2048 } if is_ahead(file));
    for is_in_time in [true, false] {
        let mut disk = MemoryDirectory::new();
        let (mut writer, _, _) = open(&mut disk, config()).unwrap();
        let mut ahead: Option<DiskRequest> = None;
        let (mut created, mut renamed) = (0, 0);
        for epoch in 1..=30 {
            append(&mut writer, epoch, &payload(epoch, 300));
            while let Some(request) = writer.next_request() {
                if request.in_background {
                    assert!(request.ops.iter().all(made_ahead) && writer.stats().position >= 1024);
                    assert!(ahead.replace(request).is_none(), "one at a time");
                    continue;
                }
                created += request.ops.iter().filter(|op| matches!(op, DiskOp::Create { .. })).count();
                renamed += request.ops.iter().filter(|op| matches!(op, DiskOp::Rename { .. })).count();
                writer.done(&ordain_log::carry_out(&mut disk, &request));
            }
            assert_eq!(writer.durable(), Epoch(epoch), "it does not wait for the file");
            if let Some(request) = ahead.take_if(|_| is_in_time) {
                writer.done(&ordain_log::carry_out(&mut disk, &request));
            }
        }
        let segments = writer.stats().segments;
        let expected = if is_in_time { (0, segments - 1) } else { (segments - 1, 0) };
        assert!(segments > 5);
        assert_eq!((created, renamed), expected);
        if let Some(request) = ahead {
            writer.done(&ordain_log::carry_out(&mut disk, &request));
        }
        // Nobody knows what an earlier life has left in it.
        let file = || "log-ahead.seg".to_owned();
        let is_there = |disk: &MemoryDirectory| disk.list().unwrap().iter().any(|(file, _)| is_ahead(file));
        if !is_there(&disk) {
            disk.apply(&DiskOp::Create { file: file(), len: 2048 }).unwrap();
        }
        disk.apply(&DiskOp::Write { file: file(), offset: 700, data: vec![b"!".to_vec().into()] }).unwrap();
        let (mut writer, recovered, found) = open(&mut disk, config()).unwrap();
        assert_eq!((found.len(), recovered.removed.len()), (30, 0));
        for epoch in 31..=40 {
            append(&mut writer, epoch, &payload(epoch, 300));
            settle(&mut disk, &mut writer);
        }
        assert!(is_there(&disk) && disk.read(&file(), 0, 4096).unwrap() == [0; 2048]);
        assert_eq!(open(&mut disk, config()).unwrap().2.len(), 40);
    }
}

/// Where there is no space to make it ahead, it is made when it is needed; and so it is when there was none to rename it.
#[test]
fn a_log_does_without_the_file_that_is_made_ahead() {
    for fails_at in [0, 1] {
        let mut disk = MemoryDirectory::new();
        let (mut writer, _, _) = open(&mut disk, config()).unwrap();
        let (mut asked, mut is_full) = (0, false);
        for epoch in 1..=30 {
            append(&mut writer, epoch, &payload(epoch, 300));
            while writer.durable() < Epoch(epoch) || asked == 0 && writer.stats().position >= 1024 {
                let Some(request) = writer.next_request() else {
                    writer.retry();
                    continue;
                };
                let is_about = |op: &DiskOp| matches!(op, DiskOp::Create { file, .. } | DiskOp::Rename { file, .. } if is_ahead(file));
                if request.ops.iter().any(is_about) {
                    disk.set_full_from((asked == fails_at).then_some(0));
                    asked += 1;
                }
                let done = ordain_log::carry_out(&mut disk, &request);
                disk.set_full_from(None);
                is_full |= matches!(writer.done(&done), Some(Progress::Full { .. }));
            }
        }
        assert_eq!((asked, is_full), (fails_at + 1, fails_at == 1), "it is not tried again");
        let (_, _, found) = open(&mut disk, config()).unwrap();
        assert_eq!(found.len(), 30);
    }
}

/// A log of a node that has a checkpoint and nothing else begins after that, and says so from then on.
#[test]
fn a_new_log_may_begin_later() {
    let mut disk = MemoryDirectory::new();
    let config = || LogConfig { begins_after: Epoch(50), ..config() };
    for round in 0..3 {
        let (mut writer, recovered, found) = open(&mut disk, config()).unwrap();
        assert_eq!((recovered.starts_after, recovered.last_epoch), (Epoch(50), Epoch(50 + round)));
        assert_eq!((found.len() as u64, writer.appended()), (round, Epoch(50 + round)));
        assert!(matches!(writer.append(Epoch(50 + round), 0, Vec::new()), Err(AppendError::Order { .. })));
        append(&mut writer, 51 + round, b"more");
        settle(&mut disk, &mut writer);
        disk.crash(|| 0);
    }
    assert_eq!(verify(&disk, None).unwrap().starts_after, Epoch(50));
}

/// An entry for which there is no space is given up, and smaller ones go on in the space there is.
#[test]
fn what_is_too_large_for_the_disk_can_be_given_up() {
    for first in [0, 100] {
        let mut disk = MemoryDirectory::new();
        let (mut writer, _, _) = open(&mut disk, config()).unwrap();
        disk.set_capacity(Some(4096));
        if first > 0 {
            append(&mut writer, 1, &payload(1, first));
            settle(&mut disk, &mut writer);
        }
        append(&mut writer, 2, &payload(2, 1 << 20));
        assert!(matches!(settle(&mut disk, &mut writer), Some(Progress::Full { .. })));
        assert!(!writer.is_idle());
        assert_eq!(writer.give_up().len(), 1);
        settle(&mut disk, &mut writer);
        assert!(writer.is_idle() && !writer.is_full());
        for epoch in 2..7 {
            append(&mut writer, epoch, &payload(epoch, 200));
            assert_eq!(settle(&mut disk, &mut writer), Some(Progress::Durable(Epoch(epoch))));
        }
        append(&mut writer, 7, &payload(7, 1200));
        assert_eq!(settle(&mut disk, &mut writer), Some(Progress::Durable(Epoch(7))));
        let (_, recovered, found) = open(&mut disk, config()).unwrap();
        assert_eq!((recovered.torn, recovered.removed.len()), (None, 0));
        let expected: Entries = (1..8)
            .filter(|epoch| *epoch > 1 || first > 0)
            .map(|epoch| {
                (epoch, payload(epoch, [first, 200, 1200][usize::from(epoch > 1) + usize::from(epoch > 6)]))
            })
            .collect();
        assert_eq!(found, expected);
    }
}
