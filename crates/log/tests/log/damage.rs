//! Any byte may decay and any file may be cut short: the log then either finds every entry it must, or says where the
//! damage is. It never shows an entry that was not written.

use crate::support::*;
use ordain_log::{Durability, Kind, LogConfig, LogError, MemoryDirectory, Torn, inspect, verify};
use ordain_model::Epoch;
use ordain_role::{Directory, DiskOp};

/// A log of three segments; the entries of each group; all of it synced.
fn written() -> (MemoryDirectory, Vec<Entries>) {
    let mut disk = MemoryDirectory::new();
    let (mut writer, _, _) = open(&mut disk, config()).expect("a new log opens");
    let mut groups = Vec::new();
    let mut epoch = 0;
    for size in [2, 1, 3, 1, 2, 3, 1, 3] {
        let group: Entries = (0..size)
            .map(|i| {
                epoch += 1;
                (epoch, payload(epoch, 150 + 37 * i))
            })
            .collect();
        group.iter().for_each(|(epoch, payload)| append(&mut writer, *epoch, payload));
        settle(&mut disk, &mut writer);
        groups.push(group);
    }
    (disk, groups)
}

/// Opens a damaged log: entries that were written, with all but the last group among them, or a refusal that names the
/// file at or before the damage. Returns whether it was refused.
fn judge(mut disk: MemoryDirectory, groups: &[Entries], file: &str, offset: u64, what: &str) -> bool {
    let all = groups.concat();
    let must = all.len() - groups[groups.len() - 1].len();
    match open(&mut disk, config()) {
        Ok((_, recovered, found)) => {
            assert!(found.len() >= must, "{what}: {} of {must} entries", found.len());
            assert_eq!(found[..], all[..found.len()], "{what}");
            assert!(found.len() == all.len() || recovered.torn.is_some(), "{what}");
            let (_, again, same) = open(&mut disk, config()).expect("what was repaired opens");
            assert_eq!((again.torn, same), (None, found), "{what}");
            false
        }
        Err(LogError::Damaged { file: named, offset: at, .. }) => {
            assert!(named == file && at <= offset, "{what}: {named} at {at}");
            true
        }
        Err(LogError::Version { file: named, .. } | LogError::Identity { file: named }) => {
            assert_eq!(named, file, "{what}");
            true
        }
        Err(LogError::Missing { .. }) if offset >= 512 => true,
        Err(other) => panic!("{what}: {other}"),
    }
}

#[test]
fn any_flipped_bit_of_the_last_segment_is_refused_or_harmless() {
    let (disk, groups) = written();
    let files = segment_files(&disk);
    assert!(files.len() >= 3);
    let file = &files[files.len() - 1];
    let mut last_group = u64::MAX;
    inspect(&disk, None, |item| {
        if let ordain_log::Item::Entry(info, _) = item
            && info.epoch.0 == groups[groups.len() - 1][0].0
        {
            last_group = info.offset;
        }
        Ok(())
    })
    .unwrap();
    let len = disk.list().unwrap().iter().find(|(name, _)| name == file).map(|(_, len)| *len).unwrap();
    for offset in 0..len {
        for bit in 0..8 {
            let mut flipped = disk.clone();
            flipped.damage(file, offset, 1 << bit);
            let refused = judge(flipped, &groups, file, offset, &format!("bit {bit} of byte {offset}"));
            assert_eq!(refused, offset < last_group, "bit {bit} of byte {offset}");
        }
    }
}

#[test]
fn any_flipped_byte_of_the_other_segments_is_refused_or_harmless() {
    let (disk, groups) = written();
    let files = segment_files(&disk);
    for file in &files[..files.len() - 1] {
        let mut ends = 0;
        inspect(&disk, None, |item| {
            if let ordain_log::Item::Entry(info, _) = item
                && info.file == *file
            {
                ends = info.offset + info.size;
            }
            Ok(())
        })
        .unwrap();
        for offset in 0..2048 {
            let mut flipped = disk.clone();
            flipped.damage(file, offset, 0x10);
            let refused = judge(flipped, &groups, file, offset, &format!("byte {offset} of {file}"));
            assert_eq!(refused, offset < ends, "byte {offset} of {file}");
        }
    }
}

#[test]
fn a_file_of_any_shorter_length_is_refused() {
    let (disk, groups) = written();
    for file in segment_files(&disk) {
        for len in 0..2048 {
            let mut cut = disk.clone();
            cut.apply(&DiskOp::SetLen { file: file.clone(), len }).unwrap();
            assert!(
                judge(cut, &groups, &file, len.max(512), &format!("{file} cut to {len}")),
                "{file} cut to {len}"
            );
        }
    }
}

#[test]
fn a_missing_segment_is_refused() {
    let (disk, _) = written();
    let files = segment_files(&disk);
    for file in &files[1..] {
        let mut gone = disk.clone();
        gone.apply(&DiskOp::Remove { file: file.clone() }).unwrap();
        let Err(LogError::Missing { file: named, .. }) = open(&mut gone, config()) else { panic!("{file}") };
        assert_eq!(&named, file);
    }
    let mut empty = MemoryDirectory::new();
    let expecting = LogConfig { expect_existing: true, ..config() };
    assert_eq!(open(&mut empty, expecting.clone()).err(), Some(LogError::Absent));
    // A first segment whose creation was interrupted is a lost one too, for a caller that knows better.
    empty.apply(&DiskOp::Create { file: files[0].clone(), len: 100 }).unwrap();
    assert_eq!(open(&mut empty, expecting).err(), Some(LogError::Absent));
    assert!(open(&mut empty, config()).unwrap().1.created);
}

/// Without syncs a new segment may be lost with the power, file or header, as long as nothing says that it was durable. From
/// then on that is damage, as it is with syncs.
#[test]
fn without_syncs_a_segment_is_damaged_or_lost_by_what_was_known_of_it() {
    let config = || LogConfig { durability: Durability::Os, ..config() };
    let mut disk = MemoryDirectory::new();
    let (mut writer, _, _) = open(&mut disk, config()).unwrap();
    let mut settling = None;
    for epoch in 1..=8 {
        append(&mut writer, epoch, &payload(epoch, 300));
        while let Some(request) = writer.next_request() {
            if request.in_background && matches!(request.ops[0], DiskOp::Sync { .. }) {
                settling = Some(request);
            } else {
                writer.done(&ordain_log::carry_out(&mut disk, &request));
            }
        }
    }
    let last = segment_files(&disk).remove(1);
    let ways = |disk: &MemoryDirectory| {
        let [mut gone, mut empty, mut damaged, mut short] = [(); 4].map(|()| disk.clone());
        gone.apply(&DiskOp::Remove { file: last.clone() }).unwrap();
        empty.apply(&DiskOp::SetLen { file: last.clone(), len: 0 }).unwrap();
        damaged.damage(&last, 20, 1);
        short.apply(&DiskOp::SetLen { file: last.clone(), len: 1000 }).unwrap();
        [gone, empty, damaged, short]
    };
    for mut lost in ways(&disk) {
        let (mut writer, recovered, found) = open(&mut lost, config()).unwrap();
        assert_eq!((found.len(), recovered.last_epoch), (4, Epoch(4)));
        assert!(recovered.torn.is_some() && segment_files(&lost).len() == 1);
        append(&mut writer, 5, b"goes on");
        settle(&mut lost, &mut writer);
        assert_eq!(open(&mut lost, config()).unwrap().2.len(), 5);
    }
    // To open it makes it durable, and so do the syncs in the background; then an entry tells too.
    let mut opened = disk.clone();
    drop(open(&mut opened, config()).unwrap());
    let mut synced = disk.clone();
    writer.done(&ordain_log::carry_out(&mut synced, &settling.unwrap()));
    append(&mut writer, 9, b"");
    settle(&mut synced, &mut writer);
    for disk in [&opened, &synced] {
        for mut damaged in ways(disk) {
            let refused = open(&mut damaged, config()).err();
            assert!(
                matches!(refused, Some(LogError::Damaged { .. } | LogError::Missing { .. })),
                "{refused:?}"
            );
        }
    }
    // The link alone is gone too: what is in the segment tells.
    let (_, _, found) = open(&mut synced.clone(), config()).unwrap();
    assert_eq!(found.len(), 9);
    let first = segment_files(&synced).remove(0);
    let end = 512 + 4 * (48 + 304);
    synced.damage(&first, end, 1);
    synced.damage(&last, 20, 1);
    assert!(matches!(open(&mut synced, config()), Err(LogError::Damaged { file, .. }) if file == last));
}

#[test]
fn a_segment_of_another_log_is_refused() {
    let (disk, _) = written();
    let other = LogConfig { identity: b"cluster 1, node 2".to_vec(), ..config() };
    let first = segment_files(&disk).remove(0);
    let before = disk.clone();
    let mut refused = disk.clone();
    assert_eq!(open(&mut refused, other).err(), Some(LogError::Identity { file: first.clone() }));
    let all = |disk: &MemoryDirectory| {
        segment_files(disk).iter().map(|file| disk.read(file, 0, 1 << 20).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(all(&refused), all(&before), "a refused log is left as it was");

    let mut version = disk;
    version.damage(&first, 8, 4 ^ 1);
    assert_eq!(open(&mut version, config()).err(), Some(LogError::Version { file: first, found: 1 }));
}

#[test]
fn damage_before_a_mark_is_refused_even_in_the_last_entry() {
    let (mut disk, groups) = written();
    let before_mark = verify(&disk, None).unwrap();
    // Opening attests everything it shows; so does a mark at a clean stop.
    drop(open(&mut disk, config()).unwrap());
    let mut data = (String::new(), 0, 0);
    let mut mark = None;
    inspect(&disk, None, |item| {
        if let ordain_log::Item::Entry(info, _) = item {
            match info.kind {
                Kind::Data => data = (info.file, info.offset, info.size),
                _ => mark = Some((info.offset, info.size)),
            }
        }
        Ok(())
    })
    .unwrap();
    let (mark, mark_size) = mark.unwrap();
    assert!(mark >= data.1);
    for offset in data.1..mark + mark_size {
        let mut flipped = disk.clone();
        flipped.damage(&data.0, offset, 4);
        match open(&mut flipped, config()) {
            Err(LogError::Damaged { offset: at, .. }) => assert!(at == data.1 && offset < mark),
            Ok((_, recovered, found)) => {
                assert!(offset >= mark && recovered.torn.is_some());
                assert_eq!(found, groups.concat());
            }
            Err(other) => panic!("{other}"),
        }
    }
    let after = verify(&disk, None).unwrap();
    assert_eq!((after.entries, after.last_epoch), (before_mark.entries, before_mark.last_epoch));
}

#[test]
fn swapped_and_misplaced_entries_do_not_pass() {
    let mut disk = MemoryDirectory::new();
    let (mut writer, _, _) = open(&mut disk, config()).unwrap();
    for epoch in 1..=4 {
        append(&mut writer, epoch, &payload(epoch, 64));
        settle(&mut disk, &mut writer);
    }
    let file = segment_files(&disk).remove(0);
    let size = 48 + 64;
    let second = disk.read(&file, 512 + size, size as usize).unwrap();
    let third = disk.read(&file, 512 + 2 * size, size as usize).unwrap();
    let put = |disk: &mut MemoryDirectory, offset: u64, bytes: &[u8]| {
        let data = vec![ordain_role::Bytes::from(bytes.to_vec())];
        disk.apply(&DiskOp::Write { file: file.clone(), offset, data }).unwrap();
    };
    let mut swapped = disk.clone();
    put(&mut swapped, 512 + size, &third);
    put(&mut swapped, 512 + 2 * size, &second);
    let mut repeated = disk;
    put(&mut repeated, 512 + 2 * size, &second);
    for (mut disk, at) in [(swapped, 512 + size), (repeated, 512 + 2 * size)] {
        let Err(LogError::Damaged { offset, .. }) = open(&mut disk, config()) else { panic!("passed") };
        assert_eq!(offset, at);
    }
}

/// A whole log as the payload of an entry that is then torn: nothing in it may be taken for the log's own.
#[test]
fn a_log_inside_a_payload_is_not_a_witness() {
    let (inner, _) = written();
    let image = segment_files(&inner)
        .iter()
        .flat_map(|file| inner.read(file, 512, 2048).unwrap())
        .collect::<Vec<_>>();
    let mut disk = MemoryDirectory::new();
    let (mut writer, _, _) = open(&mut disk, LogConfig { identity: b"other".to_vec(), ..config() }).unwrap();
    append(&mut writer, 1, &image);
    settle(&mut disk, &mut writer);
    let file = segment_files(&disk).remove(0);
    disk.damage(&file, 512, 1);
    let config = LogConfig { identity: b"other".to_vec(), ..config() };
    let (_, recovered, found) = open(&mut disk, config).unwrap();
    assert!(found.is_empty());
    assert!(matches!(recovered.torn, Some(Torn { offset: 512, .. })));
}

#[test]
fn foreign_files_are_ignored_and_a_visitor_can_refuse() {
    let (mut disk, groups) = written();
    for file in ["LOCK", "log-1.seg", "checkpoint-0000000000000001"] {
        disk.apply(&DiskOp::Create { file: file.into(), len: 3 }).unwrap();
    }
    assert_eq!(open(&mut disk, config()).unwrap().2, groups.concat());
    let refusal = ordain_log::LogWriter::open(&mut disk, config(), |entry| {
        if entry.epoch == Epoch(3) { Err("no such procedure".to_owned()) } else { Ok(()) }
    });
    let Err(LogError::Refused { epoch, reason, .. }) = refusal else { panic!("accepted") };
    assert_eq!((epoch, reason.as_str()), (Epoch(3), "no such procedure"));
}

/// The second segment holds one batch, which says nothing about the first one; its header does.
#[test]
fn damage_to_the_end_of_a_segment_is_refused_once_the_next_is_in_use() {
    let mut disk = MemoryDirectory::new();
    let (mut writer, _, _) = open(&mut disk, config()).unwrap();
    for epoch in 1..=2 {
        append(&mut writer, epoch, &payload(epoch, 1200));
        settle(&mut disk, &mut writer);
    }
    let first = segment_files(&disk).remove(0);
    let end = 512 + 48 + 1200 + 56;
    for offset in 512..end {
        let mut flipped = disk.clone();
        flipped.damage(&first, offset, 1);
        let Err(LogError::Damaged { file, .. }) = open(&mut flipped, config()) else {
            panic!("byte {offset}")
        };
        assert_eq!(file, first);
    }
}

#[test]
fn a_segment_of_another_history_is_refused() {
    let history = |salt: u64| {
        let mut disk = MemoryDirectory::new();
        let (mut writer, _, _) = open(&mut disk, config()).unwrap();
        for epoch in 1..=2 {
            append(&mut writer, epoch, &payload(epoch + salt, 1200));
            settle(&mut disk, &mut writer);
        }
        disk
    };
    let (mut disk, other) = (history(0), history(100));
    let second = segment_files(&disk).remove(1);
    let bytes = other.read(&second, 0, 1 << 20).unwrap();
    let data = vec![ordain_role::Bytes::from(bytes)];
    disk.apply(&DiskOp::Write { file: second.clone(), offset: 0, data }).unwrap();
    let Err(LogError::Damaged { file, offset: 0, .. }) = open(&mut disk, config()) else { panic!("passed") };
    assert_eq!(file, second);
}

/// The same place of the same segment of another history: only the checksum of its predecessor gives it away.
#[test]
fn an_entry_of_another_history_is_refused() {
    let history = |salt: u64| {
        let mut disk = MemoryDirectory::new();
        let (mut writer, _, _) = open(&mut disk, config()).unwrap();
        for (epoch, salt) in [(1, salt), (2, 0)] {
            append(&mut writer, epoch, &payload(epoch + salt, 64));
            settle(&mut disk, &mut writer);
        }
        disk
    };
    let (mut disk, other) = (history(0), history(100));
    let (file, second) = (segment_files(&disk).remove(0), 512 + 48 + 64);
    let data = vec![ordain_role::Bytes::from(other.read(&file, second, 48 + 64).unwrap())];
    disk.apply(&DiskOp::Write { file, offset: second, data }).unwrap();
    let Err(LogError::Damaged { offset, .. }) = open(&mut disk, config()) else { panic!("passed") };
    assert_eq!(offset, second);
}

/// Appended and marked in one go, as at a clean stop: the mark must not share the entry's request.
#[test]
fn a_mark_vouches_for_what_was_appended_just_before_it() {
    let mut disk = MemoryDirectory::new();
    let (mut writer, _, _) = open(&mut disk, config()).unwrap();
    append(&mut writer, 1, &payload(1, 64));
    writer.mark();
    settle(&mut disk, &mut writer);
    disk.damage(&segment_files(&disk)[0], 600, 1);
    assert!(matches!(open(&mut disk, config()), Err(LogError::Damaged { offset: 512, .. })));
}

/// The fuzz target of recovery: several files damaged at once. A run of what was written is found, and
/// what was repaired opens.
#[test]
fn fuzz_damaged_logs() {
    let (written, groups) = written();
    let all = groups.concat();
    ordain_fuzz::target("damaged_logs", 300, |source| {
        let mut disk = written.clone();
        for _ in 0..source.within(1..5) {
            let files = disk.list().unwrap();
            if files.is_empty() {
                break;
            }
            let (file, len) = source.pick(&files).clone();
            let offset = source.within(0..len as usize) as u64;
            match source.within(0..6) {
                0 => disk.apply(&DiskOp::SetLen { file, len: offset }).unwrap(),
                1 => disk.apply(&DiskOp::Remove { file }).unwrap(),
                2 => {
                    let data = vec![source.bytes(1..100).into()];
                    disk.apply(&DiskOp::Write { file, offset, data }).unwrap();
                }
                _ if offset < len => disk.damage(&file, offset, 1 << source.within(0..8)),
                _ => {}
            }
        }
        if let Ok((_, _, found)) = open(&mut disk, config()) {
            // A log whose first segments are gone is one that was trimmed: its owner knows where it has to begin.
            assert!(found.is_empty() || all.windows(found.len()).any(|run| run == found));
            let (_, again, same) = open(&mut disk, config()).expect("what was repaired opens");
            assert_eq!((again.torn, same), (None, found));
        }
    });
}
