//! Which way is taken from what there is, and that it is gone to its end.

use ordain_checkpoint::{Item, Outcome};
use ordain_commit::{
    Age, AttemptId, Bounds, Commitment, Content, Decided, Entries, Entry, Part, Prepare, SPACING, Standing,
    Term, TransactionId, View, Write,
};
use ordain_deterministic::sequencing::input_at;
use ordain_log::MemoryDirectory;
use ordain_model::wire::Codec as _;
use ordain_model::{
    Batch, Call, Cell, Chunk, ChunkNo, Db, GatewayId, Gsn, Isolation, OutcomeStatus, Placed, RequestNo,
    SessionId, Value,
};
use ordain_replication::EntryType as _;
use ordain_workload::append;

use super::*;

/// What there is of a partition: epochs of checkpoints; what its log begins after, its last, and the first that may not count.
type Has = (&'static [u64], Option<(u64, u64, Option<u64>)>);

#[track_caller]
fn way_of(has: &[Has], until: Option<u64>, refused: &[u64]) -> Result<(u64, u64), String> {
    let disk = MemoryDirectory::new();
    let source = |(n, (checkpoints, log)): (usize, &Has)| Source {
        partition: PartitionId(n as u16),
        name: format!("source {n}"),
        directory: &disk,
        identity: Vec::new(),
        checkpoints: checkpoints.iter().copied().map(Epoch).collect(),
        log: log.map(|(begins_after, last, undecided)| Extent {
            begins_after: Epoch(begins_after),
            last: Epoch(last),
            undecided: undecided.map(Epoch),
        }),
        aborts: BTreeSet::new(),
    };
    let sources: Vec<Source<'_>> = has.iter().enumerate().map(source).collect();
    let layout = Layout::even(has.len().max(2), 1).expect("a layout");
    let refused = refused.iter().copied().map(Epoch).collect();
    let way = way(&choose(&sources), &layout, until.map(Epoch), &refused);
    way.map(|(from, until)| (from.0, until.0)).map_err(|error| error.to_string())
}

#[test]
fn without_logs_it_is_a_checkpoint_that_all_have() {
    let has: [Has; 2] = [(&[5, 8, 12], None), (&[5, 12, 14], None)];
    assert_eq!(way_of(&has, None, &[]), Ok((12, 12)));
    assert_eq!(way_of(&has, None, &[12]), Ok((5, 5)), "the one before a damaged one");
    assert_eq!(way_of(&has, Some(5), &[]), Ok((5, 5)));
    for until in [0, 4, 8, 11, 14, 90] {
        let said = way_of(&has, Some(until), &[]).unwrap_err();
        assert!(said.contains("possible are the epochs 5, 12"), "{until}: {said}");
    }
    let said = way_of(&has, Some(12), &[12]).unwrap_err();
    assert!(said.contains("without the damaged of epoch 12"), "{said}");
    assert!(way_of(&[(&[5], None), (&[8], None)], None, &[]).unwrap_err().contains("all partitions have"));
    assert!(way_of(&[(&[5], None)], None, &[]).unwrap_err().contains("nothing of partition 1"));
}

#[test]
fn logs_reach_on_from_a_checkpoint() {
    let has: [Has; 2] = [(&[5, 12], Some((4, 20, None))), (&[5, 12], Some((5, 30, None)))];
    assert_eq!(way_of(&has, None, &[]), Ok((12, 30)), "after 20 nothing happened in the first");
    for (until, expected) in [(5, (5, 5)), (11, (5, 11)), (12, (12, 12)), (25, (12, 25)), (99, (12, 30))] {
        assert_eq!(way_of(&has, Some(until), &[]), Ok(expected));
    }
    assert_eq!(way_of(&has, Some(25), &[12]), Ok((5, 25)));
    let said = way_of(&has, Some(4), &[]).unwrap_err();
    assert!(said.contains("5 to 30, 12 to 30"), "{said}");
    // A log that begins later than a checkpoint does not follow it.
    let has: [Has; 2] = [(&[5, 12], Some((4, 20, None))), (&[5, 12], Some((9, 30, None)))];
    assert_eq!(way_of(&has, Some(5), &[]), Ok((5, 5)));
    assert!(way_of(&has, Some(6), &[]).is_err());
    // None was trimmed: a checkpoint is not even needed.
    let has: [Has; 2] = [(&[], Some((0, 20, None))), (&[5], Some((0, 30, None)))];
    assert_eq!(way_of(&has, Some(6), &[]), Ok((0, 6)));
    assert_eq!(way_of(&has, None, &[]), Ok((0, 30)));
}

#[test]
fn what_may_not_count_is_not_counted() {
    let has: [Has; 2] = [(&[5], Some((4, 20, Some(25)))), (&[5], Some((4, 30, None)))];
    assert_eq!(way_of(&has, None, &[]), Ok((5, 24)));
    assert_eq!(way_of(&has, Some(24), &[]), Ok((5, 24)));
    assert!(way_of(&has, Some(25), &[]).unwrap_err().contains("5 to 24"));
}

#[test]
fn of_members_the_one_that_knows_most_is_asked() {
    let disk = MemoryDirectory::new();
    let source = |name: &str, last: u64, undecided: Option<u64>| Source {
        partition: PartitionId(0),
        name: name.to_owned(),
        directory: &disk,
        identity: Vec::new(),
        checkpoints: Vec::new(),
        log: Some(Extent { begins_after: Epoch(0), last: Epoch(last), undecided: undecided.map(Epoch) }),
        aborts: BTreeSet::new(),
    };
    let asked = |sources: &[Source<'_>]| choose(sources)[&PartitionId(0)].name.clone();
    assert_eq!(asked(&[source("a", 9, Some(10)), source("b", 8, None), source("c", 7, None)]), "b");
    assert_eq!(asked(&[source("a", 8, Some(9)), source("b", 9, Some(10))]), "b");
}

#[test]
fn a_new_history_begins_behind_all_of_the_old_one_and_of_others() {
    let begun = [begins(Epoch(9), Epoch(7)), begins(Epoch(9), Epoch(8)), begins(Epoch(9), Epoch(9))];
    assert!(begun.iter().all(|epoch| epoch.0 > LEAP + 9 && epoch.0 < 2 * LEAP));
    assert!(begun[0] != begun[1] && begun[1] != begun[2] && begun[0] != begun[2]);
    assert_eq!(begins(Epoch(9), Epoch(7)), begun[0], "whoever computes it");
}

/// The first keys that a partition holds.
fn keys_of(layout: &Layout, partition: PartitionId) -> Vec<Vec<u8>> {
    let keys = (0..).map(|n| format!("key:{n}").into_bytes());
    let is_here = |key: &Vec<u8>| layout.partition_of_key(Db(0), key) == partition;
    keys.filter(is_here).take(5).collect()
}

/// Writes a checkpoint in which all keys of a partition have its epoch as their value.
fn save(directory: &mut MemoryDirectory, layout: &Layout, partition: PartitionId, epoch: u64) {
    let header = Header::new(&identity(partition), layout, partition, Epoch(epoch));
    let mut writer = Writer::begin(directory, &header).unwrap();
    for key in keys_of(layout, partition) {
        let cell =
            Cell { value: Some(Value::String(epoch.to_string().into_bytes())), expires_at: Millis(0).into() };
        let version = Gsn::new(Epoch(epoch), partition, 0);
        writer.put(&Item::Record { db: Db(0), key: &key, cell, version }).unwrap();
    }
    let (session, request) = (SessionId(u64::from(partition.0) + 1), RequestNo(epoch));
    let (gsn, status) = (Gsn::new(Epoch(epoch), partition, 0), OutcomeStatus::Committed);
    writer.put(&Item::Outcome(Outcome { session, request, gsn, status, reply: b"reply" })).unwrap();
    writer.put(&Item::Input(&input_at(Millis(epoch)))).unwrap();
    writer.seal(Millis(77)).unwrap();
}

fn identity(partition: PartitionId) -> Vec<u8> {
    format!("c/calvin/{}", partition.0).into_bytes()
}

/// All that a checkpoint holds, in words.
fn content(directory: &dyn Directory, header: &Header) -> Vec<String> {
    let mut content = Vec::new();
    let read = ordain_checkpoint::read(directory, header, |item| {
        content.push(format!("{item:?}"));
        Ok(())
    });
    read.unwrap();
    content
}

#[test]
fn a_damaged_checkpoint_of_one_partition_has_all_take_the_one_before() {
    let layout = Arc::new(Layout::even(2, 1).unwrap());
    let partitions = [PartitionId(0), PartitionId(1)];
    let mut disks = [MemoryDirectory::new(), MemoryDirectory::new()];
    for (disk, partition) in disks.iter_mut().zip(partitions) {
        [5, 8].iter().for_each(|epoch| save(disk, &layout, partition, *epoch));
    }
    let registry = crate::procedures::all();
    let run = |disks: &[MemoryDirectory; 2], until: Option<u64>, skips: Option<PartitionId>| {
        let sources = disks.iter().zip(partitions).map(|(disk, partition)| {
            let place = (partition, format!("partition {}", partition.0));
            Source { log: None, ..Source::of_files(disk, place, (identity(partition), false)).unwrap() }
        });
        let sources: Vec<Source<'_>> = sources.collect();
        let dirs = tempfile::tempdir().unwrap();
        let open = |partition: PartitionId| {
            ordain_runtime::FsDirectory::open(&dirs.path().join(partition.0.to_string())).unwrap()
        };
        let mut target = |partition: PartitionId| {
            let wanted = skips != Some(partition);
            Ok(wanted.then(|| Box::new(open(partition)) as Box<dyn Directory>))
        };
        let until = (until.map(Epoch), Millis(99));
        let restored = restore(
            &sources,
            (&layout, &registry, How::Executes(Isolation::Serializable)),
            until,
            &mut target,
        )?;
        let contents =
            partitions.into_iter().filter(|partition| skips != Some(*partition)).map(|partition| {
                let header = Header::new(&identity(partition), &layout, partition, restored.begins);
                let found = ordain_checkpoint::list(&open(partition)).unwrap();
                assert_eq!((found.len(), found[0].epoch), (1, restored.begins), "nothing of other attempts");
                content(&open(partition), &header)
            });
        let contents: Vec<Vec<String>> = contents.collect();
        Ok::<_, RestoreError>((restored, contents))
    };
    let (restored, contents) = run(&disks, None, None).unwrap();
    assert_eq!((restored.from, restored.until, restored.refused.len()), (Epoch(8), Epoch(8), 0));
    for ((disk, partition), content_now) in disks.iter().zip(partitions).zip(&contents) {
        let header = Header::new(&identity(partition), &layout, partition, Epoch(8));
        assert_eq!(content_now, &content(disk, &header), "what it was, item by item");
        assert_eq!(content_now.len(), 7);
    }
    disks[1].damage(&ordain_checkpoint::file_name(Epoch(8)), 700, 1);
    let (restored, before) = run(&disks, None, None).unwrap();
    assert_eq!((restored.from, restored.until), (Epoch(5), Epoch(5)));
    assert!(
        restored.refused[0].contains("partition 1") && restored.refused[0].contains("damaged"),
        "{restored:?}"
    );
    assert!(before.concat().iter().all(|item| !item.contains("String([56])")), "nothing of 8: {before:?}");
    // Who makes one partition alone decides as all do.
    let (alone, only) = run(&disks, None, Some(PartitionId(1))).unwrap();
    assert_eq!((alone.begins, alone.from), (restored.begins, restored.from));
    assert_eq!(only, before[..1]);
    let said = run(&disks, Some(8), None).unwrap_err().to_string();
    assert!(
        said.contains("without the damaged of epoch 8") && said.contains("possible are the epochs 5"),
        "{said}"
    );
}

/// The second transaction of a batch of two is what it would be without the first, and the session knows how that has ended.
#[test]
fn what_an_operator_has_aborted_is_not_executed_again() {
    let (registry, layout) = (crate::procedures::all(), Layout::single(1));
    let mut chunk = Chunk::new(GatewayId(0), ChunkNo(1));
    for base in [1_u64, 2] {
        let mut packed = vec![1, 0];
        packed.extend(base.to_le_bytes());
        let session = Some((SessionId(base), RequestNo(1)));
        let call = Call { session, ..Call::new(append::RUN, append::DB) };
        chunk.push(&registry, call, |args| _ = args.push(&append::key(1)).push(&packed)).unwrap();
    }
    let (epoch, total) = (Epoch(3), chunk.span());
    let chunks = vec![Placed::whole(0, Arc::new(chunk))];
    let batch = Batch { epoch, layout: 1, now: Millis(9), total, chunks, ..Batch::default() };
    let mut logged = batch.encode_head();
    batch.logged().for_each(|placed| logged.extend_from_slice(placed.chunk.logged()));
    let first = batch.txns().map(|(gsn, ..)| gsn).next().unwrap();
    let items = |aborts: BTreeSet<Gsn>| {
        let mut state = State::new(registry.clone(), &layout, Isolation::Serializable);
        assert_eq!(state.execute(&logged, &aborts), Ok(2));
        let (mut disk, partition) = (MemoryDirectory::new(), PartitionId(0));
        let header = Header::new(b"c", &layout, partition, epoch);
        let mut writer = Writer::begin(&mut disk, &header).unwrap();
        state.give(partition, &mut writer).unwrap();
        writer.seal(Millis(1)).unwrap();
        content(&disk, &header).concat()
    };
    let (both, second) = (items(BTreeSet::new()), items(BTreeSet::from([first])));
    assert!(both.contains("String([1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0])"), "{both}");
    assert!(second.contains("String([2, 0, 0, 0, 0, 0, 0, 0])"), "{second}");
    assert!(!both.contains("Operator") && second.contains("Aborted(Operator)"), "{second}");
}

/// Writes a checkpoint of the commit family, with a record of a key and parts of the image.
fn save_cut(directory: &mut MemoryDirectory, layout: &Layout, partition: PartitionId, parts: &[Part]) {
    let header = Header::new(&identity(partition), layout, partition, Epoch(SPACING));
    let mut writer = Writer::begin(directory, &header).unwrap();
    let cell = Cell { value: Some(Value::String(b"old".to_vec())), ..Cell::ABSENT };
    let key = &keys_of(layout, partition)[0];
    writer.put(&Item::Record { db: Db(0), key, cell, version: Gsn(7) }).unwrap();
    parts.iter().for_each(|part| writer.image(&part.to_bytes()).unwrap());
    writer.seal(Millis(77)).unwrap();
}

#[test]
fn what_a_partition_has_promised_before_a_cut_is_there_if_its_home_has_committed_it_before() {
    let layout = Arc::new(Layout::even(2, 1).unwrap());
    let partitions = [PartitionId(0), PartitionId(1)];
    let attempt = AttemptId { transaction: TransactionId::of(3), attempt: 1 };
    let standing = Part::Standing(Standing::default());
    for (commit, expected) in [(Some(Commitment::at(Age(1))), "new"), (None, "old")] {
        let mut disks = [MemoryDirectory::new(), MemoryDirectory::new()];
        let decided = Decided { commit: commit.clone(), participants: vec![PartitionId(1)], place: Epoch(2) };
        save_cut(
            &mut disks[0],
            &layout,
            partitions[0],
            &[standing.clone(), Part::Decided(vec![(attempt, decided)])],
        );
        let cell = Cell { value: Some(Value::String(b"new".to_vec())), ..Cell::ABSENT };
        let write = Write::new(
            &ordain_model::Placement::NONE,
            Db(0),
            keys_of(&layout, partitions[1])[0].clone(),
            cell,
        );
        let (bounds, ceiling) = (Bounds::at(Age(1)), Millis(0));
        let (changes, holds) = (Vec::new(), Vec::new());
        let prepare = Prepare {
            attempt,
            bounds,
            view: View::NONE,
            ceiling,
            changes,
            writes: vec![write],
            holds,
            among: None,
        };
        let place = Epoch(5);
        let promise = Content::Prepare(prepare);
        let entry = Entry { place, term: Term(1), now: Millis(9), content: promise, agreed: None };
        let promised = Part::Prepared(vec![Entries::encode(&Arc::new(entry))]);
        save_cut(&mut disks[1], &layout, partitions[1], &[standing.clone(), promised]);
        // What nobody could replay as input is left alone.
        let log = Some(Extent { begins_after: Epoch(0), last: Epoch(SPACING + 4), undecided: None });
        let sources = disks.iter().zip(partitions).map(|(disk, partition)| {
            let place = (partition, format!("partition {}", partition.0));
            Source { log, ..Source::of_files(disk, place, (identity(partition), false)).unwrap() }
        });
        let sources: Vec<Source<'_>> = sources.collect();
        let dirs = tempfile::tempdir().unwrap();
        let open = |partition: PartitionId| {
            ordain_runtime::FsDirectory::open(&dirs.path().join(partition.0.to_string())).unwrap()
        };
        let mut target = |partition: PartitionId| Ok(Some(Box::new(open(partition)) as Box<dyn Directory>));
        let registry = crate::procedures::all();
        let how = (&layout, &registry, How::Resolves);
        let restored = restore(&sources, how, (None, Millis(99)), &mut target).unwrap();
        assert_eq!((restored.from, restored.until), (Epoch(SPACING), Epoch(SPACING)));
        assert!(restored.begins.0 > SPACING + LEAP);
        let contents = partitions.map(|partition| {
            let header = Header::new(&identity(partition), &layout, partition, restored.begins);
            content(&open(partition), &header)
        });
        assert!(contents.iter().all(|content| content.len() == 2), "a record and times: {contents:?}");
        let text = format!("{:?}", Value::String(expected.into()));
        assert!(contents[1][0].contains(&text), "{commit:?}: {contents:?}");
    }
}
