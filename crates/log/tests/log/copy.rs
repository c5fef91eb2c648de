//! A copy up to an epoch is the log as it was then: it opens without a repair, holds just that, and can be continued.

use crate::support::*;
use ordain_log::{Item, Kind, LogError, MemoryDirectory, Progress, copy_until, inspect, trim};
use ordain_model::Epoch;
use ordain_role::{Bytes, Directory, DiskOp};

/// A log of many segments, with marks, and with gaps between its epochs.
fn written(seed: u64) -> (MemoryDirectory, Entries) {
    let (mut random, mut disk, mut entries) = (Random(seed), MemoryDirectory::new(), Entries::new());
    let (mut writer, _, _) = open(&mut disk, config()).expect("a new log opens");
    for epoch in (1..40).map(|n| n * 3) {
        entries.push((epoch, payload(epoch, random.below(700))));
        append(&mut writer, epoch, &entries[entries.len() - 1].1);
        if random.below(3) == 0 {
            settle(&mut disk, &mut writer);
        }
        if random.below(5) == 0 {
            writer.mark();
        }
    }
    settle(&mut disk, &mut writer);
    (disk, entries)
}

#[test]
fn a_copy_up_to_an_epoch_holds_that_and_goes_on() {
    for seed in 0..20 {
        let (mut disk, entries) = written(seed);
        if seed % 2 == 1 {
            assert!(!trim(&mut disk, None, Epoch(60)).unwrap().is_empty());
        }
        let (_, recovered, kept) = open(&mut disk, config()).unwrap();
        for last in (recovered.starts_after.0..=120).chain([u64::MAX]) {
            let mut copy = MemoryDirectory::new();
            copy_until(&disk, &mut copy, Epoch(last)).unwrap();
            // It is durable.
            copy.crash(|| 1);
            let expected: Entries = kept.iter().filter(|(epoch, _)| *epoch <= last).cloned().collect();
            let (mut writer, again, found) = open(&mut copy, config()).unwrap();
            assert_eq!(found, expected, "seed {seed}, up to {last}");
            assert_eq!((again.torn, again.removed.len(), again.created), (None, 0, false));
            assert_eq!(again.starts_after, recovered.starts_after);
            let next = expected.last().map_or(recovered.starts_after.0, |(epoch, _)| *epoch) + 1;
            append(&mut writer, next, b"another");
            assert_eq!(settle(&mut copy, &mut writer), Some(Progress::Durable(Epoch(next))));
            let (_, _, found) = open(&mut copy, config()).unwrap();
            assert_eq!(found.len(), expected.len() + 1);
            assert_eq!(found[..expected.len()], expected);
        }
        assert_eq!(kept[..], entries[entries.len() - kept.len()..]);
    }
}

#[test]
fn nothing_is_copied_of_a_log_that_is_damaged() {
    let (mut disk, _) = written(1);
    let mut place = None;
    inspect(&disk, None, |item| {
        if let Item::Entry(entry, _) = item
            && entry.kind == Kind::Data
            && place.is_none()
        {
            place = Some((entry.file, entry.offset + entry.size - 1));
        }
        Ok(())
    })
    .unwrap();
    let (file, offset) = place.unwrap();
    let data = vec![Bytes::from(vec![0xa5])];
    disk.apply(&DiskOp::Write { file: file.clone(), offset, data }).unwrap();
    let mut copy = MemoryDirectory::new();
    let refused = copy_until(&disk, &mut copy, Epoch(60));
    assert!(matches!(&refused, Err(LogError::Damaged { file: named, .. }) if *named == file), "{refused:?}");
    assert!(copy.list().unwrap().is_empty());
}
