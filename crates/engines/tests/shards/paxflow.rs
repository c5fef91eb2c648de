//! The scenarios of paxflow.md, section 8, by number, and what else snapshots promise.
//!
//! Every test ends by holding each read to what the reference executor answers at the end of its epoch (oracle 1), and
//! the state to its state, with the reads and without (oracle 2).
//!
//! | scenario | here | besides |
//! |---|---|---|
//! | 1 many epochs of reads, then a write | below | |
//! | 2 a read before any header of its epoch | below | |
//! | 3 the slowest sequencer's header is late | below | |
//! | 4 partitions epochs apart | below | sim |
//! | 5 a write elsewhere in the same epoch | | sim: `previous_may_miss_what_session_and_strict_do_not` |
//! | 6 a record written a thousand times | below | |
//! | 7 a later epoch's writer ends first | below | |
//! | 8 insert, delete, insert | below | store: `tests/store/past.rs` |
//! | 9 a read far behind the floor | below | |
//! | 10 the word that it is done is lost | below | |
//! | 11 a crash, and a token of before | below | sim |
//! | 12 another replica between two reads | | sim: sessions turn to any node |
//! | 13 reads under a load of writes, writes under one of reads | below | |
//! | 14 all of an epoch abort | below | |
//! | 15 reads around a checkpoint while it is captured | below | sim |
//! | 16 a read that writes | | resp, commands: EVAL_RO |
//! | 17 a passive participant | below | |
//! | 18 whoever tells what is published stands still | below | |

use ordain_model::args::encode;
use ordain_model::{Call, Db, Epoch, Gsn, Micros, OutcomeStatus, Reads, View, system};
use ordain_sim::workload::procedures as p;

use crate::random::command;
use crate::support::cluster::{Cluster, Next, REPLICA, Shape, Ticket};
use crate::support::{
    Answer, Bench, GATEWAY, LOG, Options, SEQUENCER, SHARD, gauge, key_on, procedures as t, render,
};

const COUNT: Call = Call::new(p::INCREMENT, p::COUNTERS);
const SEE: Call = Call::new(p::GET, p::COUNTERS);

fn bench(reads: Reads) -> Bench {
    Bench::new(Options { reads, ..Options::default() })
}

fn cluster(partitions: usize) -> Cluster {
    Cluster::new(Shape { partitions, snapshots: true, ..Shape::default() })
}

/// Writes, and answers as of which epoch.
fn write(cluster: &mut Cluster, call: Call, args: &[&[u8]]) -> Epoch {
    cluster.submit(0, REPLICA, call, &encode(args)).unwrap();
    cluster.seal();
    cluster.epoch()
}

/// All that was sealed is handed over, and everybody is told.
fn pass_all(cluster: &mut Cluster, epoch: Epoch) {
    cluster.settle();
    (0..cluster.shape.partitions).for_each(|node| cluster.pass(node, epoch));
    cluster.settle();
}

fn shown(cluster: &Cluster, ticket: Ticket) -> String {
    cluster.answer(ticket).map_or("-".into(), |answer| match answer.status {
        OutcomeStatus::TooOld => "too old".into(),
        _ => render(&answer.reply),
    })
}

fn is_of_read(answer: &Answer) -> bool {
    answer.gsn.is_of_read()
}

#[test]
fn scenario_01_many_reads_seal_nothing_and_see_what_was_written_before() {
    for reads in [Reads::Previous, Reads::Session, Reads::Strict] {
        let mut bench = bench(reads);
        let key = key_on("n", 1, 2);
        for _ in 0..5_000 {
            assert!(is_of_read(&bench.ask(SEE, &encode(&[&key]))));
        }
        assert!(bench.sealed.is_empty(), "a read is not sequenced");
        let written = bench.ask(COUNT, &encode(&[&key])).gsn;
        let view = View::Since(written.epoch().into());
        let ticket = bench.submit_to(0, view, SEE, &encode(&[&key])).unwrap();
        bench.flush(0);
        bench.settle();
        let answer = bench.answer(ticket).unwrap();
        assert_eq!(render(&answer.reply), "[\"1\"]", "{reads}");
        assert!(is_of_read(answer) && answer.gsn > written);
        bench.verify();
    }
}

#[test]
fn scenario_02_a_read_waits_for_an_epoch_of_which_nothing_is_there() {
    let mut cluster = cluster(2);
    let key = cluster.key_in("n", 1);
    let ticket = cluster.read_at(SEE, &encode(&[&key]), Epoch(7));
    cluster.settle();
    assert_eq!(
        (shown(&cluster, ticket), cluster.gauge(1, "ordain_shard_snapshot_chunks")),
        ("-".into(), 1.0)
    );
    cluster.pass(1, Epoch(6));
    assert_eq!(shown(&cluster, ticket), "-");
    // Epochs without anything in them, and nothing after them: an idle system answers.
    cluster.pass(1, Epoch(7));
    cluster.settle();
    assert_eq!(shown(&cluster, ticket), "[nil]");
    cluster.verify();
}

#[test]
fn scenario_03_a_late_header_holds_reads_up_and_lets_them_go_in_order() {
    let mut cluster = cluster(2);
    let key = cluster.key_in("n", 0);
    let mut tickets = Vec::new();
    for _ in 0..3 {
        let epoch = write(&mut cluster, COUNT, &[&key]);
        tickets.push((epoch, cluster.read_at(SEE, &encode(&[&key]), epoch)));
    }
    // Later ones first.
    tickets.reverse();
    cluster.settle();
    assert!(tickets.iter().all(|(_, ticket)| cluster.answer(*ticket).is_none()), "one header is missing");
    let last = cluster.epoch();
    cluster.pass(0, last);
    cluster.settle();
    let seen: Vec<String> = tickets.iter().map(|(_, ticket)| shown(&cluster, *ticket)).collect();
    assert_eq!(seen, ["[\"3\"]", "[\"2\"]", "[\"1\"]"]);
    cluster.verify();
}

#[test]
fn scenario_04_partitions_that_are_epochs_apart_show_one_state() {
    let mut cluster = cluster(2);
    let (a, b) = (cluster.key_in("a", 0), cluster.key_in("b", 1));
    let transfer = Call::new(p::TRANSFER, p::ACCOUNTS);
    let mut epochs = vec![Epoch(0)];
    for _ in 0..6 {
        epochs.push(write(&mut cluster, transfer, &[&a, &b, b"7"]));
    }
    cluster.settle();
    // Node 0 knows of all of it, node 1 of the first only.
    cluster.pass(0, epochs[6]);
    cluster.pass(1, epochs[1]);
    let audit = Call::new(p::AUDIT, p::ACCOUNTS);
    let tickets: Vec<Ticket> =
        epochs.iter().map(|epoch| cluster.read_at(audit, &encode(&[&a, &b]), *epoch)).collect();
    cluster.settle();
    let answered = |cluster: &Cluster| tickets.iter().filter(|t| cluster.answer(**t).is_some()).count();
    assert_eq!(answered(&cluster), 2);
    for epoch in &epochs[2..] {
        cluster.pass(1, *epoch);
        cluster.settle();
    }
    assert_eq!(answered(&cluster), 7);
    cluster.verify();
}

#[test]
fn scenario_06_a_record_that_is_written_all_the_time_is_read_as_it_was() {
    let mut cluster = cluster(2);
    let (n, far) = (cluster.key_in("n", 0), cluster.key_in("l", 1));
    let before = write(&mut cluster, COUNT, &[&n]);
    pass_all(&mut cluster, before);
    cluster.hold(1, 0);
    for _ in 0..1000 {
        cluster.submit(0, REPLICA, COUNT, &encode(&[&n])).unwrap();
    }
    // The last of the epoch waits for the other partition.
    let during = write(&mut cluster, Call::new(p::EVEN, p::COUNTERS), &[&n, &far, &n]);
    pass_all(&mut cluster, during);
    let first = cluster.read_at(SEE, &encode(&[&n]), before);
    let second = cluster.read_at(SEE, &encode(&[&n]), during);
    cluster.settle();
    assert_eq!((shown(&cluster, first), shown(&cluster, second)), ("[\"1\"]".into(), "-".into()));
    cluster.release(1, 0);
    cluster.settle();
    assert_ne!(shown(&cluster, second), "-");
    cluster.verify();
}

#[test]
fn scenario_07_neither_a_later_epoch_nor_half_of_one_is_seen() {
    let mut cluster = cluster(2);
    let (x, y, far) = (cluster.key_in("x", 0), cluster.key_in("y", 0), cluster.key_in("far", 1));
    let rotate = Call::new(p::ROTATE, p::OBJECTS);
    let put = Call::new(p::PUT, p::OBJECTS);
    for (key, value) in [(&x, b"x0"), (&y, b"y0"), (&far, b"f0")] {
        write(&mut cluster, put, &[key, value]);
    }
    let before = cluster.epoch();
    pass_all(&mut cluster, before);
    cluster.hold(1, 0);
    let early = write(&mut cluster, rotate, &[&y, &far]);
    let late = write(&mut cluster, put, &[&x, b"x1"]);
    pass_all(&mut cluster, late);
    let get = Call::new(p::GET, p::OBJECTS);
    let tickets: Vec<Ticket> =
        [before, early, late].map(|epoch| cluster.read_at(get, &encode(&[&x, &y]), epoch)).to_vec();
    cluster.settle();
    let seen = |cluster: &Cluster| tickets.iter().map(|t| shown(cluster, *t)).collect::<Vec<_>>();
    assert_eq!(seen(&cluster), ["[\"x0\" \"y0\"]", "-", "-"], "x is written, and y is not");
    cluster.release(1, 0);
    cluster.settle();
    assert_eq!(seen(&cluster)[1..], ["[\"x0\" \"f0\"]", "[\"x1\" \"f0\"]"]);
    cluster.verify();
}

#[test]
fn scenario_08_a_record_that_comes_and_goes_is_there_when_it_was() {
    let mut cluster = cluster(2);
    let key = cluster.key_in("k", 1);
    let (put, delete) = (Call::new(p::PUT, p::OBJECTS), Call::new(p::DELETE, p::OBJECTS));
    let steps = [
        Epoch(0),
        write(&mut cluster, put, &[&key, b"one"]),
        write(&mut cluster, delete, &[&key]),
        write(&mut cluster, put, &[&key, b"two"]),
    ];
    pass_all(&mut cluster, steps[3]);
    let (get, count) = (Call::new(p::GET, p::OBJECTS), Call::new(p::COUNT, p::OBJECTS));
    let gets = steps.map(|epoch| cluster.read_at(get, &encode(&[&key]), epoch));
    let counts = steps.map(|epoch| cluster.read_at(count, &encode::<&[u8]>(&[]), epoch));
    cluster.settle();
    assert_eq!(gets.map(|ticket| shown(&cluster, ticket)), ["[nil]", "[\"one\"]", "[nil]", "[\"two\"]"]);
    assert_eq!(counts.map(|ticket| shown(&cluster, ticket)), ["0", "1", "0", "1"]);
    // Nobody reads there any more: nothing is kept.
    cluster.floor(steps[3]);
    assert_eq!(cluster.gauge(1, "ordain_store_older_records"), 0.0);
    cluster.verify();
}

#[test]
fn scenario_09_what_is_read_far_behind_is_refused_and_little_is_kept() {
    let mut cluster = cluster(1);
    let key = cluster.key_in("n", 0);
    let first = write(&mut cluster, COUNT, &[&key]);
    pass_all(&mut cluster, first);
    // Somebody is said to read there all the time.
    cluster.floor(first);
    for _ in 0..40_000 {
        let epoch = write(&mut cluster, COUNT, &[&key]);
        pass_all(&mut cluster, epoch);
        cluster.floor(first);
    }
    let kept = cluster.gauge(0, "ordain_store_older_records");
    assert!(kept < 35_000.0, "{kept} older contents of one record");
    let late = cluster.read_at(SEE, &encode(&[&key]), first);
    let last = cluster.epoch();
    let recent = cluster.read_at(SEE, &encode(&[&key]), last);
    cluster.settle();
    assert_eq!((shown(&cluster, late), shown(&cluster, recent)), ("too old".into(), "[\"40001\"]".into()));
    cluster.verify();
}

#[test]
fn scenario_09_the_gateway_asks_again_for_a_later_state() {
    let mut bench = bench(Reads::Session);
    let key = key_on("n", 0, 2);
    bench.ask(COUNT, &encode(&[&key]));
    bench.ask(SEE, &encode(&[&key]));
    // The read is on its way for so long that its state is gone.
    bench.hold(SEQUENCER, SHARD);
    let ticket = bench.submit(0, SEE, &encode(&[&key])).unwrap();
    bench.flush(0);
    bench.settle();
    assert_eq!(bench.pending(SEQUENCER, SHARD), 1);
    bench.advance(Micros::from_millis(12_000));
    bench.settle();
    let busy = bench.answer(ticket).expect("it is given up");
    assert_eq!(busy.status, OutcomeStatus::Busy);
    bench.ask(COUNT, &encode(&[&key]));
    let again = bench.submit(0, SEE, &encode(&[&key])).unwrap();
    bench.flush(0);
    bench.release(SEQUENCER, SHARD);
    bench.settle();
    assert_eq!(render(&bench.answer(again).unwrap().reply), "[\"2\"]");
}

#[test]
fn who_waits_for_an_epoch_that_does_not_come_keeps_nobody_waiting() {
    let mut bench = bench(Reads::Session);
    let key = key_on("n", 0, 2);
    bench.ask(COUNT, &encode(&[&key]));
    let far = bench.submit_to(0, View::Since(Epoch(1 << 40).into()), SEE, &encode(&[&key])).unwrap();
    let near = bench.submit(0, SEE, &encode(&[&key])).unwrap();
    bench.flush(0);
    bench.settle();
    assert_eq!(
        render(&bench.answer(near).expect("it was asked for together with the other").reply),
        "[\"1\"]"
    );
    assert!(bench.answer(far).is_none());
    bench.advance(Micros::from_millis(12_000));
    bench.settle();
    assert_eq!(bench.answer(far).expect("it is given up").status, OutcomeStatus::Busy);
    bench.advance(Micros::from_millis(12_000));
    bench.settle();
    assert_eq!(gauge(&bench.shards[0], "ordain_shard_snapshot_chunks"), 0.0, "nothing is left of it");
    // What is written meanwhile is not kept for it.
    for _ in 0..10 {
        bench.ask(COUNT, &encode(&[&key]));
    }
    let older = gauge(&bench.shards[0], "ordain_store_older_records");
    assert!(older <= 1.0, "{older} older contents");
    bench.verify();
}

#[test]
fn while_nobody_reads_nothing_is_kept_and_the_first_read_sees_one_state() {
    let mut cluster = cluster(2);
    let keys = [0, 1].map(|partition| cluster.key_in("n", partition));
    let both = |cluster: &mut Cluster| {
        cluster.submit(0, REPLICA, COUNT, &encode(&[&keys[0]])).unwrap();
        write(cluster, COUNT, &[&keys[1]])
    };
    let older = |cluster: &Cluster| [0, 1].map(|shard| cluster.gauge(shard, "ordain_store_older_records"));
    // One of two sequencers knows of no reads: the other may.
    cluster.forget(0, 0);
    cluster.forget(1, 0);
    let known = both(&mut cluster);
    pass_all(&mut cluster, known);
    let last = both(&mut cluster);
    pass_all(&mut cluster, last);
    assert_eq!(older(&cluster), [2.0, 2.0]);
    cluster.forget(0, 1);
    cluster.forget(1, 1);
    for _ in 0..5 {
        let epoch = both(&mut cluster);
        pass_all(&mut cluster, epoch);
    }
    assert_eq!(older(&cluster), [0.0, 0.0]);
    // They begin one after the other, the second one in the middle of an epoch: a later one than what is published.
    let published = cluster.epoch();
    let first = cluster.keep(0);
    let open = both(&mut cluster);
    cluster.settle();
    let second = cluster.keep(1);
    assert_eq!((first, second), (published, open));
    let seen = |cluster: &mut Cluster, at: Epoch| {
        let ticket = cluster.read_at(SEE, &encode(&keys), at);
        (0..2).for_each(|node| cluster.pass(node, at));
        cluster.settle();
        shown(cluster, ticket)
    };
    assert_eq!(seen(&mut cluster, first), "too old", "one of them cannot show it any more");
    assert_eq!(seen(&mut cluster, second), "[\"8\" \"8\"]");
    cluster.verify();
}

#[test]
fn reads_after_a_silence_wait_for_all_shards_and_then_for_nobody() {
    for reads in [Reads::Previous, Reads::Session, Reads::Strict] {
        let mut bench = bench(reads);
        let keys = [0, 1].map(|shard| key_on("n", shard, 2));
        let older = |bench: &Bench| [0, 1].map(|n| gauge(&bench.shards[n], "ordain_store_older_records"));
        let write = |bench: &mut Bench| keys.iter().for_each(|key| _ = bench.ask(COUNT, &encode(&[key])));
        write(&mut bench);
        assert_eq!(older(&bench), [0.0, 0.0], "nobody has read yet");
        // The second shard is not asked for anything but must be able to show what it holds, all the same.
        bench.hold(SHARD + 1, SEQUENCER);
        let lease = bench.submit_to(0, View::Open(Epoch(0).into()), SEE, &encode(&[&keys[0]])).unwrap();
        bench.flush(0);
        bench.settle();
        assert!(bench.answer(lease).is_none());
        bench.release(SHARD + 1, SEQUENCER);
        bench.settle();
        let at = bench.answer(lease).expect("both have said so").gsn.epoch();
        write(&mut bench);
        let leased = bench
            .submit_to(0, View::At(at.into(), ordain_model::Millis(0)), SEE, &encode(&[&keys[1]]))
            .unwrap();
        bench.flush(0);
        bench.settle();
        assert_eq!(render(&bench.answer(leased).unwrap().reply), "[\"1\"]");
        assert_eq!(render(&bench.ask(SEE, &encode(&[&keys[1]])).reply), "[\"2\"]");
        // Who holds the state does not come back; the silence begins when that is over.
        bench.advance(Micros::from_millis(9_000));
        write(&mut bench);
        assert_ne!(older(&bench), [0.0, 0.0]);
        bench.advance(Micros::from_millis(14_000));
        write(&mut bench);
        assert_eq!(older(&bench), [0.0, 0.0]);
        // A shard that does not answer holds nobody up for long.
        bench.hold(SEQUENCER, SHARD + 1);
        let first = bench.submit(0, SEE, &encode(&[&keys[0]])).unwrap();
        bench.flush(0);
        bench.settle();
        assert!(bench.answer(first).is_none());
        bench.advance(Micros::from_millis(30));
        bench.settle();
        assert_eq!(render(&bench.answer(first).unwrap().reply), "[\"4\"]");
        bench.release(SEQUENCER, SHARD + 1);
        bench.settle();
        // The lease was not released: its end is told once more than somebody waits for it.
        assert_eq!(bench.halted, None);
    }
}

#[test]
fn scenario_10_the_floor_moves_though_nobody_says_that_a_read_is_done() {
    let mut bench = bench(Reads::Session);
    let key = key_on("n", 0, 2);
    bench.ask(COUNT, &encode(&[&key]));
    bench.ask(SEE, &encode(&[&key]));
    bench.hold(GATEWAY, SEQUENCER);
    let ticket = bench.submit(0, SEE, &encode(&[&key])).unwrap();
    bench.flush(0);
    assert!(bench.deliver(GATEWAY, SEQUENCER));
    bench.settle();
    assert!(bench.answer(ticket).is_some());
    let lost = bench.pending(GATEWAY, SEQUENCER);
    assert!(lost > 0, "it has said that it is done");
    for _ in 0..10 {
        bench.submit(0, COUNT, &encode(&[&key])).unwrap();
        bench.flush(0);
        // The word that was lost stays behind.
        (0..=lost).for_each(|_| _ = bench.deliver(GATEWAY, SEQUENCER));
        bench.settle();
    }
    bench.release(GATEWAY, SEQUENCER);
    bench.advance(Micros::from_millis(12_000));
    bench.settle();
    bench.ask(COUNT, &encode(&[&key]));
    let older = gauge(&bench.shards[0], "ordain_store_older_records");
    assert!(older <= 1.0, "{older} older contents");
    bench.verify();
}

#[test]
fn scenario_11_a_token_of_before_a_crash_is_honoured() {
    let mut bench = Bench::new(Options { log: true, reads: Reads::Session, ..Options::default() });
    let key = key_on("n", 1, 2);
    let written = bench.ask(COUNT, &encode(&[&key])).gsn;
    // Killed before the shards have said what they have executed.
    bench.hold(SHARD, SEQUENCER);
    bench.hold(SHARD + 1, SEQUENCER);
    let last = bench.ask(COUNT, &encode(&[&key])).gsn;
    bench.crash();
    for (token, expected) in [(Gsn::NONE, "[\"2\"]"), (written, "[\"2\"]"), (last, "[\"2\"]")] {
        let view = View::Since(token.epoch().into());
        let ticket = bench.submit_to(0, view, SEE, &encode(&[&key])).unwrap();
        bench.flush(0);
        bench.settle();
        assert_eq!(render(&bench.answer(ticket).unwrap().reply), expected);
    }
    bench.verify();
}

#[test]
fn scenario_13_neither_reads_nor_writes_wait_for_all_of_the_others() {
    const MANY: usize = 4_000;
    let mut cluster = cluster(1);
    let key = cluster.key_in("n", 0);
    let before = write(&mut cluster, COUNT, &[&key]);
    pass_all(&mut cluster, before);
    // More writes than a turn, and a read that comes while they are executed.
    let writes: Vec<Ticket> =
        (0..MANY).map(|_| cluster.submit(0, REPLICA, COUNT, &encode(&[&key])).unwrap()).collect();
    cluster.seal();
    let mut reads: Vec<Ticket> = (0..3).map(|_| cluster.read(SEE, &encode(&[&key]), before)).collect();
    reads.iter().for_each(|read| cluster.run_read(0, *read));
    cluster.happen(Next::Batch(0));
    cluster.run_read(0, reads[0]);
    assert!(reads.iter().all(|read| cluster.answer(*read).is_some()), "reads have their turn");
    cluster.settle();
    assert!(writes.iter().all(|write| cluster.answer(*write).is_some()));
    // One read of far more keys than a turn has room for: a writer is done before it.
    let keys: Vec<Vec<u8>> = (0..6_000u32).map(|n| n.to_be_bytes().to_vec()).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let last = cluster.epoch();
    pass_all(&mut cluster, last);
    let large = cluster.read(SEE, &encode(&keys), last);
    cluster.run_read(0, large);
    assert_eq!(shown(&cluster, large), "-", "it has not read all in one go");
    let write = cluster.submit(0, REPLICA, COUNT, &encode(&[&key])).unwrap();
    cluster.seal();
    cluster.happen(Next::Batch(0));
    assert!(cluster.answer(write).is_some() && cluster.answer(large).is_none(), "the writer did not wait");
    cluster.settle();
    assert!(cluster.answer(large).is_some());
    reads.push(large);
    cluster.verify();
}

#[test]
fn scenario_14_an_epoch_of_which_everything_aborts_is_published() {
    let mut cluster = cluster(2);
    let (a, b) = (cluster.key_in("a", 0), cluster.key_in("b", 1));
    write(&mut cluster, Call::new(p::PUT, p::OBJECTS), &[&a, b"here"]);
    let epoch = write(&mut cluster, Call::new(t::TRUSTING, p::OBJECTS), &[&a, &b]);
    pass_all(&mut cluster, epoch);
    let ticket = cluster.read_at(Call::new(p::GET, p::OBJECTS), &encode(&[&a, &b]), epoch);
    cluster.settle();
    assert_eq!(shown(&cluster, ticket), "[\"here\" nil]");
    cluster.verify();
}

#[test]
fn scenario_15_reads_go_on_around_a_checkpoint_while_it_is_captured() {
    let shape = Shape { partitions: 2, snapshots: true, checkpoint_piece: 30, ..Shape::default() };
    let mut cluster = Cluster::new(shape);
    let keys: Vec<Vec<u8>> = (0..20).map(|n| cluster.key_in(&format!("n{n}-"), n % 2)).collect();
    for key in keys.iter().chain(&keys) {
        write(&mut cluster, COUNT, &[key]);
    }
    let before = cluster.epoch();
    // The cut is in the middle of its epoch.
    let (call, none) = (Call::new(system::CHECKPOINT, Db(0)), encode::<&[u8]>(&[]));
    cluster.submit(0, REPLICA, COUNT, &encode(&[&keys[0]])).unwrap();
    cluster.submit(0, REPLICA, call, &none).unwrap();
    let cut = write(&mut cluster, COUNT, &[&keys[1]]);
    cluster.writes_nothing = true;
    pass_all(&mut cluster, cut);
    let at_cut = cluster.digest();
    assert!(cluster.saved.complete(2).is_empty(), "most of it has not been given");
    let after = write(&mut cluster, COUNT, &[&keys[0]]);
    (0..3).flat_map(|_| &keys).for_each(|key| _ = write(&mut cluster, COUNT, &[key]));
    let last = cluster.epoch();
    pass_all(&mut cluster, last);

    let see = |cluster: &mut Cluster| {
        let tickets = [before, cut, after].map(|at| cluster.read_at(SEE, &encode(&[&keys[0]]), at));
        cluster.settle();
        tickets.map(|ticket| shown(cluster, ticket))
    };
    assert_eq!(see(&mut cluster), ["[\"2\"]", "[\"3\"]", "[\"4\"]"]);
    // Nobody reads at the cut or before it any more: it is the checkpoint alone that keeps it.
    cluster.floor(after);
    pass_all(&mut cluster, last);
    assert_eq!(see(&mut cluster)[2], "[\"4\"]");
    cluster.floor(last);
    let next = write(&mut cluster, COUNT, &[&keys[2]]);
    pass_all(&mut cluster, next);
    let older =
        |cluster: &Cluster| (0..2).map(|node| cluster.gauge(node, "ordain_store_older_records")).sum::<f64>();
    assert!(older(&cluster) >= keys.len() as f64 - 4.0, "{}", older(&cluster));
    cluster.writes_nothing = false;
    cluster.settle();
    assert_eq!(cluster.saved.complete(2), [cut]);
    assert_eq!(cluster.saved.digest(cut), at_cut);
    // It is over: nothing is kept for it.
    cluster.floor(next);
    pass_all(&mut cluster, next);
    assert_eq!(older(&cluster), 0.0);
    cluster.verify();
}

#[test]
fn scenario_17_who_only_served_a_read_does_not_hold_its_epoch_back() {
    let mut cluster = cluster(2);
    let (l, n, m) = (cluster.key_in("l", 1), cluster.key_in("n", 0), cluster.key_in("m", 1));
    cluster.hold(0, 1);
    let epoch = write(&mut cluster, Call::new(p::EVEN, p::COUNTERS), &[&l, &n, &m]);
    pass_all(&mut cluster, epoch);
    let here = cluster.read_at(SEE, &encode(&[&n]), epoch);
    let there = cluster.read_at(SEE, &encode(&[&m]), epoch);
    cluster.settle();
    assert_ne!(shown(&cluster, here), "-", "node 0 has only read");
    assert_eq!(shown(&cluster, there), "-", "node 1 is to write");
    cluster.release(0, 1);
    cluster.settle();
    assert_ne!(shown(&cluster, there), "-");
    cluster.verify();
}

#[test]
fn scenario_18_what_was_published_is_read_while_nobody_says_what_is() {
    let mut bench = bench(Reads::Session);
    let key = key_on("n", 0, 2);
    bench.ask(COUNT, &encode(&[&key]));
    bench.ask(SEE, &encode(&[&key]));
    bench.hold(SHARD, SEQUENCER);
    bench.ask(COUNT, &encode(&[&key]));
    bench.ask(COUNT, &encode(&[&key]));
    // Without a token an older state will do; with one it has to be that.
    assert_eq!(render(&bench.ask(SEE, &encode(&[&key])).reply), "[\"1\"]");
    bench.release(SHARD, SEQUENCER);
    bench.settle();
    assert_eq!(render(&bench.ask(SEE, &encode(&[&key])).reply), "[\"3\"]");
    bench.verify();
}

#[test]
fn a_strict_read_sees_what_is_answered_though_the_log_has_not_said_so() {
    let mut bench = bench(Reads::Strict);
    let key = key_on("n", 0, 2);
    bench.hold(LOG, SEQUENCER);
    assert_eq!(render(&bench.ask(COUNT, &encode(&[&key])).reply), "[1]");
    assert_eq!(render(&bench.ask(SEE, &encode(&[&key])).reply), "[\"1\"]");
    bench.release(LOG, SEQUENCER);
    bench.settle();
    bench.verify();
}

#[test]
fn scripts_tables_and_checks_are_read_over_all_shards() {
    let mut bench = Bench::new(Options { shards: 3, reads: Reads::Session, ..Options::default() });
    let keys = [0, 1, 2].map(|shard| key_on("o", shard, 3));
    let call = |procedure| Call::new(procedure, p::OBJECTS);
    for key in &keys {
        bench.ask(call(p::PUT), &encode(&[&key[..], b"x"]));
    }
    let count = bench.ask(Call::new(p::COUNT, p::OBJECTS), &encode::<&[u8]>(&[]));
    assert_eq!((render(&count.reply).as_str(), is_of_read(&count)), ("3", true));
    let run = |bench: &mut Bench, words: &[&[u8]]| {
        let (procedure, db, args) = command(words, p::OBJECTS);
        bench.ask(Call::new(procedure, db), &args)
    };
    let size = run(&mut bench, &[b"dbsize"]);
    assert_eq!((render(&size.reply).as_str(), is_of_read(&size)), ("3", true));
    let script: &[u8] = b"return redis.call('GET', KEYS[1]) .. redis.call('GET', KEYS[2]) .. KEYS[3]";
    let answer = run(&mut bench, &[b"eval_ro", script, b"3", &keys[0], &keys[1], &keys[2]]);
    assert!(is_of_read(&answer), "{answer:?}");
    assert_eq!(render(&answer.reply), format!("\"xx{}\"", keys[2].escape_ascii()));
    assert_eq!(bench.sealed_calls("eval_ro"), 0);
    bench.verify();
}
