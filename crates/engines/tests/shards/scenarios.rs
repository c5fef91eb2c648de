//! The scenarios of calvin.md, section 8, by number.
//!
//! Those that are too short for a file of their own are golden transcripts in `src/calvin/scripts`, run below by number.
//! What real processes and the simulator show besides is in the last column: `e2e` is `crates/ordain/tests/e2e`, `sim`
//! the seeds in `crates/ordain/src/sim.rs`. What only asynchronous replication can come to is tested where that is: `configuration_service` is
//! `crates/replication/src/configuration_service/tests.rs`, `log` the folder `crates/replication/src/input_log/tests`, and `sim async` what
//! `ordain sim --replication async` runs, whole clusters in which primaries die.
//!
//! | scenario | on one node | over partitions, on members | besides |
//! |---|---|---|---|
//! | 1 a read result before its batch | transcript | `partitions` | sim |
//! | 2 a key twice | transcript | | |
//! | 3 a passive participant | transcript | `partitions` | |
//! | 4 a read-only one, one reply | transcript | `partitions` | sim |
//! | 5 an abort by a read elsewhere | transcript | `partitions` | sim |
//! | 6 a blind write and a reader | transcript | | |
//! | 7 empty epochs, then one transaction | below | `exchanges` | |
//! | 8 a sequencer stands still | transcript (the log does) | `exchanges` | e2e `faults`: `a_node_of_one_replica_stands_still…` |
//! | 9 a request twice | transcripts | | e2e `retries`, and `faults`: sessions that turn to other nodes |
//! | 10 a reconnaissance that is stale twice | transcript | | sim |
//! | 11 a crash between sync and dispatch | transcript | | e2e `kill`, `faults` |
//! | 11 its second half: what was dispatched is lost, a survivor was told of it | | `configuration_service`: `what_only_the_dead_node_knew…`, `execution_of_what_nobody_knows…` | sim async |
//! | 12 killed amid a hundred | | `partitions`, from log and journal | e2e `faults` |
//! | 12 from a checkpoint that its peers have gone on from | | `partitions` | sim; e2e `checkpoint` |
//! | 13 two nodes die together | | `partitions`, from logs and journals; from checkpoints, each from its own: there need be no common one | e2e `faults`: all three; sim |
//! | 14 a record comes and goes around a checkpoint | `checkpoint` | | sim |
//! | 15 an old primary comes back, and has executed what was dropped | | `log`: `who_has_to_be_rebuilt…`, `what_comes_from_an_earlier_term…`; `configuration_service`: configuration entries | sim async; of a leader that comes back: e2e `faults`, sim |
//! | 16 a hot key | below | | |
//! | 17 the partition map changes | | `moving`: transactions of the epoch before under way, both sides killed, random; `exchanges`: a batch under another number of partitions is refused | e2e `faults`: `slots_move_under_load…`; sim |
//! | 18 another digest on one replica | transcript (between shards) | `members` | sim: `a_replica_that_diverges_takes_itself_out` |

use ordain_model::args::encode;
use ordain_model::{Abort, Call, Gsn, Micros, OutcomeStatus};
use ordain_sim::workload::procedures as p;

use crate::support::{Bench, LOG, Options, SHARD, gauge, key_on, procedures as t, render, script};

macro_rules! transcripts {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            let golden = include_str!(concat!("../../src/calvin/scripts/", stringify!($name), ".txt"));
            assert_eq!(script::run(golden), golden);
        })*
    };
}

transcripts! {
    scenario_01_a_slot_comes_before_its_batch
    scenario_02_a_key_is_read_and_written
    scenario_03_a_shard_only_reads
    scenario_04_a_read_over_several_shards
    scenario_05_an_abort_by_a_read_elsewhere
    scenario_06_a_blind_write_and_a_reader
    scenario_08_the_log_stands_still
    scenario_09_a_retry_after_the_original_is_done
    scenario_09_a_retry_while_the_original_waits
    scenario_09_a_retry_in_the_same_batch
    scenario_09_a_retry_after_a_restart
    scenario_10_the_reconnaissance_is_stale_twice
    scenario_11_a_crash_between_sync_and_dispatch
    scenario_18_something_of_a_finished_transaction
}

#[test]
fn scenario_07_many_empty_turns_then_one_transaction() {
    let mut bench = Bench::new(Options { shards: 4, log: true, ..Options::default() });
    for _ in 0..1000 {
        bench.advance(Micros::from_millis(10));
        bench.settle();
    }
    assert!(bench.sealed.is_empty(), "an idle node seals nothing");
    // A thousand epochs that leave no entry in the log.
    let key = key_on("n", 3, 4);
    for _ in 0..1000 {
        bench.ask(Call::new(p::GET, p::COUNTERS), &encode(&[&key]));
    }
    let answer = bench.ask(Call::new(p::INCREMENT, p::COUNTERS), &encode(&[&key]));
    assert_eq!((answer.status, render(&answer.reply).as_str()), (OutcomeStatus::Committed, "[1]"));
    bench.verify();
    bench.crash();
    assert_eq!(bench.sealed_calls("sim.increment"), 1);
    assert_eq!(bench.sealed_calls("sim.get"), 0, "what only reads is not logged");
    // No epoch is given twice, though the log does not know how many were.
    let next = bench.ask(Call::new(p::INCREMENT, p::COUNTERS), &encode(&[&key]));
    assert!(next.gsn.epoch() > answer.gsn.epoch());
    bench.verify();
}

#[test]
fn scenario_16_a_hot_key_is_first_come_first_served() {
    const READERS: usize = 10_000;
    let mut bench = Bench::new(Options { window: READERS + 10, ..Options::default() });
    let (hot, far) = (key_on("o", 0, 2), key_on("p", 1, 2));
    let call = |procedure| Call::new(procedure, p::OBJECTS);
    bench.ask(call(p::PUT), &encode(&[&hot[..], b"first"]));
    bench.ask(call(p::PUT), &encode(&[&far[..], b"far"]));
    // Whoever holds the key waits for the other shard.
    bench.hold(SHARD + 1, SHARD);
    let holder = bench.submit(0, call(p::ROTATE), &encode(&[&hot, &far])).unwrap();
    let read = |bench: &mut Bench| bench.submit(0, call(p::GET), &encode(&[&hot])).unwrap();
    let readers: Vec<_> = (0..READERS).map(|_| read(&mut bench)).collect();
    // The writer takes part in both shards too, and has to wait for the other once it has the lock.
    let writer = bench.submit(0, call(p::ROTATE), &encode(&[&hot, &far])).unwrap();
    let last = read(&mut bench);
    bench.flush(0);
    bench.settle();
    assert_eq!(gauge(&bench.shards[0], "ordain_shard_in_flight"), (READERS + 3) as f64);
    assert!(bench.answer(holder).is_none() && bench.answer(readers[0]).is_none());
    // The slot that the holder waits for: the readers run, all of them, and nobody who came after the writer.
    assert!(bench.deliver(SHARD + 1, SHARD));
    bench.settle();
    for reader in &readers {
        assert_eq!(render(&bench.answer(*reader).expect("it has the lock").reply), "[\"far\"]");
    }
    let overtaken = bench.answer(writer).is_none() && bench.answer(last).is_some();
    assert!(!overtaken, "a reader overtook the writer");
    bench.release(SHARD + 1, SHARD);
    bench.settle();
    assert_eq!(render(&bench.answer(last).unwrap().reply), "[\"first\"]");
    bench.verify();
}

#[test]
fn nothing_is_dispatched_before_it_is_durable() {
    let mut bench = Bench::new(Options { log: true, ..Options::default() });
    bench.disk_held = true;
    let key = key_on("l", 0, 2);
    let ticket = bench.submit(0, Call::new(p::APPEND, p::LISTS), &encode(&[&key[..], b"x"])).unwrap();
    bench.flush(0);
    bench.settle();
    assert!(bench.disk_pending() > 0);
    assert_eq!((bench.sealed.len(), bench.pending(LOG, SHARD)), (0, 0));
    bench.disk_held = false;
    bench.settle();
    assert_ne!(bench.answer(ticket).unwrap().gsn, Gsn::NONE);
    bench.verify();
}

#[test]
fn what_depends_on_a_failed_check_does_not_run() {
    let mut bench = Bench::new(Options::default());
    for (checked, counted) in [(0, 0), (0, 1), (1, 0)] {
        let (checked, counted) = (key_on("a", checked, 2), key_on("b", counted, 2));
        let call = |procedure| Call::new(procedure, p::OBJECTS);
        let args = encode(&[&checked, &counted]);
        assert_eq!(bench.ask(call(t::TRUSTING), &args).status, OutcomeStatus::Committed);
        bench.ask(call(p::PUT), &encode(&[&checked[..], b"x"]));
        let refused = bench.ask(call(t::TRUSTING), &args);
        assert_eq!(refused.status, OutcomeStatus::Aborted(Abort::Logic));
        assert_eq!(render(&refused.reply), "(ERR not now)");
        bench.ask(call(p::DELETE), &encode(&[&checked]));
    }
    bench.verify();
}
