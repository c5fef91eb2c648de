//! Whatever the log has called durable is found again after a crash at any operation, with any sectors torn.

use std::collections::VecDeque;

use crate::support::*;
use ordain_log::{Durability, LogConfig, LogWriter, MemoryDirectory};
use ordain_model::Epoch;
use ordain_role::{Bug, Bugs, DiskRequest};
use proptest::prelude::*;

/// One life of a node: appends at random until the machine stops after `left` operations. Returns what was appended,
/// behind `before`, and the last epoch called durable.
fn live(
    disk: &mut MemoryDirectory,
    mut writer: LogWriter,
    before: Entries,
    random: &mut Random,
    mut left: u64,
    trim: bool,
) -> (Entries, Epoch) {
    let mut entries = before;
    let mut last = writer.appended().0;
    // What is asked for in the background takes as long as it likes.
    let mut waiting: VecDeque<DiskRequest> = VecDeque::new();
    loop {
        match random.below(16) {
            0 => writer.mark(),
            1 if trim => writer.truncate_before(Epoch(last.saturating_sub(random.below(8)))),
            2..10 => {
                last += 1 + random.below(2) * random.below(5);
                let len = if random.below(20) == 0 { 5000 } else { random.below(500) };
                entries.push((last, payload(last, len)));
                append(&mut writer, last, &entries[entries.len() - 1].1);
            }
            _ => {
                let done = waiting.pop_front_if(|_| random.below(4) == 0);
                let Some(request) = done.or_else(|| writer.next_request()) else { continue };
                if request.in_background && random.below(4) > 0 {
                    waiting.push_back(request);
                } else if finish(disk, &mut writer, &request, &mut left).is_none() {
                    return (entries, writer.durable());
                }
            }
        }
    }
}

/// Checks that `found` is a run of `written` that ends at `last`, not before `durable`, and begins at the beginning
/// unless that may be trimmed.
fn check(found: &Entries, last: Epoch, written: &Entries, durable: Epoch, trim: bool) -> Result<(), String> {
    if last < durable {
        return Err(format!("{durable} was durable and the log ends at {last}"));
    }
    let end = written.iter().take_while(|entry| entry.0 <= last.0).count();
    let start = end.checked_sub(found.len()).ok_or("entries nobody wrote")?;
    if written[start..end] != found[..] {
        return Err("the entries are not those written".into());
    }
    if start > 0 && !trim {
        return Err("the beginning is gone".into());
    }
    Ok(())
}

/// Several lives on one disk, with power cuts, mere process deaths, and stops during recovery between them.
fn lives(config: &LogConfig, seed: u64, stop_after: Option<u64>, trim: bool) -> Result<(), String> {
    let mut random = Random(seed);
    let mut disk = MemoryDirectory::new();
    let mut written = Entries::new();
    let mut durable = Epoch(0);
    for life in 0..4 {
        while random.below(3) == 0 {
            let left = random.below(12);
            let stopped = open(&mut Interrupted { disk: &mut disk, left }, config.clone());
            drop(stopped);
            if random.below(2) == 0 {
                disk.crash(|| random.next());
            }
        }
        let (writer, recovered, found) =
            open(&mut disk, config.clone()).map_err(|error| format!("refused: {error}"))?;
        check(&found, recovered.last_epoch, &written, durable, trim)?;
        let stop = stop_after.filter(|_| life == 0).unwrap_or_else(|| random.below(60));
        (written, durable) = live(&mut disk, writer, found, &mut random, stop, trim);
        if random.below(4) > 0 {
            disk.crash(|| random.next());
        }
    }
    let (_, recovered, found) =
        open(&mut disk, config.clone()).map_err(|error| format!("refused: {error}"))?;
    check(&found, recovered.last_epoch, &written, durable, trim)
}

#[test]
fn a_crash_at_every_operation_loses_nothing_durable() {
    for stop in 0..150 {
        for seed in 0..12 {
            lives(&config(), seed, Some(stop), false)
                .unwrap_or_else(|why| panic!("stop {stop} seed {seed}: {why}"));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lives_and_crashes_lose_nothing_durable(seed: u64, trim: bool) {
        lives(&config(), seed, None, trim).map_err(TestCaseError::fail)?;
    }

    /// Without syncs a loss of power may take entries, but what is left is still a prefix, and it opens.
    #[test]
    fn without_syncs_what_is_left_is_a_prefix(seed: u64) {
        let config = LogConfig { durability: Durability::Os, ..config() };
        match lives(&config, seed, None, false) {
            Ok(()) => {}
            Err(why) => prop_assert!(why.contains("was durable"), "{}", why),
        }
    }
}

/// The checks above must notice a log that does not sync; if they do not, they check nothing.
#[test]
fn a_log_that_does_not_sync_is_found_out() {
    let without = LogConfig { durability: Durability::Os, ..config() };
    let lying = LogConfig { bugs: Bugs::NONE.with(Bug::SkipSync), ..config() };
    for config in [without, lying] {
        let lost = (0..50).filter(|seed| lives(&config, *seed, None, false).is_err()).count();
        assert!(lost > 25, "lost something in {lost} of 50 runs");
    }
}

/// A process that dies takes nothing with it, whatever the durability.
#[test]
fn without_syncs_the_death_of_the_process_loses_nothing() {
    let config = LogConfig { durability: Durability::Os, ..config() };
    for seed in 0..200 {
        let mut random = Random(seed);
        let mut disk = MemoryDirectory::new();
        let (mut written, mut durable) = (Entries::new(), Epoch(0));
        for _ in 0..4 {
            let (writer, recovered, found) = open(&mut disk, config.clone()).unwrap();
            assert_eq!(recovered.torn, None);
            check(&found, recovered.last_epoch, &written, durable, false).unwrap();
            let stop = random.below(60);
            (written, durable) = live(&mut disk, writer, found, &mut random, stop, false);
        }
    }
}

/// After a failed sync the system may have forgotten what it had to write, and still show it. The next process reads
/// it and must write it again before anything follows from it.
#[test]
fn what_a_failed_sync_left_unwritten_is_written_by_the_next_process() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let mut disk = MemoryDirectory::new();
        let mut last = 0;
        let Ok((mut writer, _, _)) = open(&mut disk, config()) else { panic!("a new log opens") };
        for _ in 0..1 + random.below(12) {
            last += 1;
            append(&mut writer, last, &payload(last, random.below(600)));
            settle(&mut disk, &mut writer);
        }
        disk.fail_syncs(true);
        append(&mut writer, last + 1, &payload(last + 1, random.below(600)));
        settle(&mut disk, &mut writer);
        assert!(writer.failure().is_some());
        assert!(writer.append(Epoch(last + 2), 0, Vec::new()).is_err());
        assert!(writer.next_request().is_none());
        disk.fail_syncs(false);
        let (mut writer, _, shown) = open(&mut disk, config()).unwrap();
        assert!(shown.len() as u64 >= last);
        if random.below(2) == 0 {
            append(&mut writer, last + 2, &payload(last + 2, random.below(600)));
            settle(&mut disk, &mut writer);
        }
        disk.crash(|| random.next());
        let (_, _, found) = open(&mut disk, config()).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        assert_eq!(found[..shown.len()], shown[..], "seed {seed}");
    }
}

#[test]
fn a_crash_while_the_empty_segment_grows_leaves_a_log() {
    for stop in 0..8 {
        for seed in 0..40 {
            let mut random = Random(seed);
            let mut disk = MemoryDirectory::new();
            let Ok((mut writer, _, _)) = open(&mut disk, config()) else { panic!("a new log opens") };
            append(&mut writer, 1, &payload(1, 5000));
            let mut left = stop;
            while until_stop(&mut disk, &mut writer, &mut left) == Some(true) {}
            disk.crash(|| random.next());
            let (_, _, found) = open(&mut disk, config()).unwrap_or_else(|why| panic!("stop {stop}: {why}"));
            assert!(found.len() as u64 >= writer.durable().0);
        }
    }
}

/// As above, at the very beginning: the header of a new log is shown by reads and was never written.
#[test]
fn a_log_whose_creation_was_not_synced_is_written_again() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let mut disk = MemoryDirectory::new();
        disk.fail_syncs(true);
        assert!(open(&mut disk, config()).is_err());
        disk.fail_syncs(false);
        let (mut writer, _, _) = open(&mut disk, config()).unwrap();
        append(&mut writer, 1, &payload(1, 1000));
        settle(&mut disk, &mut writer);
        disk.crash(|| random.next());
        assert_eq!(open(&mut disk, config()).unwrap().2, [(1, payload(1, 1000))], "seed {seed}");
    }
}
