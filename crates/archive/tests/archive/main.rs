//! Archivers with directories and stores that are made up: what gets there, what does not, what is left of half an upload,
//! and what a store that refuses costs.

#![allow(clippy::unwrap_used, reason = "all of this is test code")]

mod bucket;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bucket::Bucket;
use ordain_archive::stored::{StoredCheckpoints, kept};
use ordain_archive::{Archiver, ArchiverSettings, Blocking, Environment, Location, Owner, Report, Rules};
use ordain_checkpoint::{Encoder, Header, Kind, Piece, Seal, file_name, seal_name, verify};
use ordain_model::{Cell, Db, Epoch, Gsn, Layout, Millis, PartitionId, Value};
use ordain_role::NodeId;

const RECORDS: u32 = 300;

fn header(epoch: u64) -> Header {
    let layout = Layout::even(1, 1).expect("a layout");
    Header::new(b"cluster/calvin/0", &layout, PartitionId(0), Epoch(epoch))
}

fn owner() -> Owner {
    Owner {
        cluster: "cluster".into(),
        alone: true,
        engine: "calvin".into(),
        layout: 1,
        starts: vec![0],
        regions: Vec::new(),
        partition: 0,
        replication: "none".into(),
    }
}

/// Puts a complete checkpoint into a directory.
fn save(dir: &Path, epoch: u64) {
    let (mut encoder, head) = Encoder::begin(&header(epoch));
    let mut piece = Piece::new(Kind::Records);
    for key in 0..RECORDS {
        let cell = Cell { value: Some(Value::String(vec![epoch as u8; 50])), expires_at: Millis(0).into() };
        piece.push_record(Db(0), format!("key:{key}").as_bytes(), &cell, Gsn(1));
    }
    let mut bytes = head.as_ref().to_vec();
    encoder.frame(piece).iter().for_each(|part| bytes.extend_from_slice(part.as_ref()));
    encoder.end().0.iter().for_each(|part| bytes.extend_from_slice(part.as_ref()));
    fs::write(dir.join(file_name(Epoch(epoch))), bytes).unwrap();
    let seal = Seal { epoch: Epoch(epoch), at: Millis(5) };
    fs::write(dir.join(seal_name(Epoch(epoch))), seal.encode()).unwrap();
}

fn remove(dir: &Path, epoch: u64) {
    fs::remove_file(dir.join(seal_name(Epoch(epoch)))).unwrap();
    fs::remove_file(dir.join(file_name(Epoch(epoch)))).unwrap();
}

/// A store, of either kind, and what it takes to reach it.
struct Store {
    location: Location,
    environment: Environment,
}

impl Store {
    fn directory(path: &Path) -> Store {
        Store { location: Location::Directory(path.to_owned()), environment: Environment::default() }
    }

    fn bucket(bucket: &Bucket) -> Store {
        let location = format!("s3://{}/some/where", bucket::NAME).parse().unwrap();
        let variables = bucket.environment().map(|(key, value)| (key.to_owned(), value));
        Store { location, environment: Environment::new(variables) }
    }

    fn archiver(&self, dir: &Path, change: impl FnOnce(&mut Rules)) -> Archiver {
        let quick = Duration::from_millis(5);
        let identity = (NodeId(0), owner(), header(0));
        let mut settings = ArchiverSettings {
            environment: self.environment.clone(),
            part: Some(6000),
            ..ArchiverSettings::new(self.location.clone(), dir.to_owned(), identity)
        };
        settings.rules = Rules { keep: 2, pace: quick, wait: quick, ..settings.rules };
        change(&mut settings.rules);
        Archiver::start(settings).unwrap()
    }

    fn open(&self) -> Blocking {
        Blocking::open(&self.location, &self.environment).unwrap()
    }

    /// The epochs that count, by node.
    fn there(&self) -> Vec<(u64, u16)> {
        let found = kept(&self.open(), PLACE).unwrap();
        let sound = found.iter().filter(|kept| kept.sound().is_ok());
        sound.map(|kept| (kept.epoch.0, kept.node.0)).collect()
    }

    /// Reads all of a checkpoint, and says how many records it has.
    fn read(&self, epoch: u64) -> Result<u64, String> {
        let archive = self.open();
        let found = kept(&archive, PLACE).unwrap();
        let stored = StoredCheckpoints::new(&archive, PLACE, found.iter());
        verify(&stored, Epoch(epoch)).map(|(_, totals)| totals.records).map_err(|error| error.to_string())
    }
}

const PLACE: &str = "cluster/0";

/// Waits for something that an archiver does.
#[track_caller]
fn until(archiver: &Archiver, what: &str, is_so: impl Fn(&Report) -> bool) -> Report {
    let begun = Instant::now();
    loop {
        let report = archiver.standing().report();
        if is_so(&report) {
            return report;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "never: {what}: {report:?}");
        std::thread::yield_now();
    }
}

fn objects(path: &Path) -> Vec<PathBuf> {
    let mut objects: Vec<PathBuf> =
        fs::read_dir(path.join(PLACE)).unwrap().map(|entry| entry.unwrap().path()).collect();
    objects.sort();
    objects
}

/// What both kinds of store must do.
fn keeps_the_newest(store: &Store) {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), 3);
    let archiver = store.archiver(dir.path(), |_| {});
    let report = until(&archiver, "the first is there", |report| report.uploaded == 1);
    assert!(report.bytes > 3 * 6000, "it takes several parts");
    assert_eq!(store.there(), [(3, 0)]);
    assert_eq!(store.read(3), Ok(u64::from(RECORDS)));
    // One that is not complete is none.
    save(dir.path(), 4);
    fs::remove_file(dir.path().join(seal_name(Epoch(4)))).unwrap();
    for (n, epoch) in [5, 8, 200].into_iter().enumerate() {
        save(dir.path(), epoch);
        until(&archiver, "the next is there", |report| {
            report.uploaded == n as u64 + 2 && report.uploading.is_none()
        });
    }
    until(&archiver, "older ones go", |report| (report.kept, report.epoch) == (2, Epoch(200)));
    assert_eq!(store.there(), [(8, 0), (200, 0)]);
    drop(archiver);
    // Another one finds what is there, and takes nothing twice.
    remove(dir.path(), 3);
    let archiver = store.archiver(dir.path(), |_| {});
    until(&archiver, "it has looked", |report| report.epoch == Epoch(200));
    save(dir.path(), 300);
    let report =
        until(&archiver, "the newest is there", |report| (report.kept, report.epoch) == (2, Epoch(300)));
    assert_eq!((report.uploaded, report.failing), (1, None));
}

#[test]
fn a_directory_keeps_the_newest() {
    let stored = tempfile::tempdir().unwrap();
    keeps_the_newest(&Store::directory(stored.path()));
    assert_eq!(objects(stored.path()).len(), 4, "two objects each: {:?}", objects(stored.path()));
}

#[test]
fn a_bucket_keeps_the_newest() {
    let bucket = Bucket::start();
    keeps_the_newest(&Store::bucket(&bucket));
    let names = bucket.names();
    assert_eq!(names.len(), 4, "{names:?}");
    assert_eq!(names[3], "some/where/cluster/0/checkpoint-000000000000012c.0.state");
    assert!(bucket.asked().iter().any(|asked| asked.contains("partNumber=3")), "in parts");
    assert_eq!(bucket.uploads(), 0);
}

#[test]
fn a_store_that_refuses_is_tried_again_until_it_takes_it() {
    let (bucket, dir) = (Bucket::start(), tempfile::tempdir().unwrap());
    let store = Store::bucket(&bucket);
    bucket.refuse(true);
    save(dir.path(), 7);
    let archiver = store.archiver(dir.path(), |_| {});
    let report = until(&archiver, "it fails", |report| report.failures >= 2);
    let said = report.failing.unwrap();
    assert!(said.contains("s3://ordain-test/some/where") && said.contains("503"), "{said}");
    assert_eq!(report.uploaded, 0);
    bucket.refuse(false);
    let report = until(&archiver, "it is there", |report| report.uploaded == 1 && report.failing.is_none());
    assert_eq!(report.epoch, Epoch(7));
    assert_eq!(store.read(7), Ok(u64::from(RECORDS)));
}

#[test]
fn nobody_to_connect_to_and_a_directory_that_cannot_be_are_failures_that_pass() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), 7);
    // A port at which nobody listens.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let told = [
        ("AWS_ENDPOINT", format!("http://{free}")),
        ("AWS_ALLOW_HTTP", "true".into()),
        ("AWS_ACCESS_KEY_ID", "me".into()),
        ("AWS_SECRET_ACCESS_KEY", "s".into()),
    ];
    let environment = Environment::new(told.map(|(key, value)| (key.to_owned(), value)));
    let store = Store { location: "s3://b".parse().unwrap(), environment };
    let archiver = store.archiver(dir.path(), |_| {});
    let report = until(&archiver, "it fails", |report| report.failing.is_some());
    assert!(report.failing.unwrap().contains("s3://b"));
    drop(archiver);

    let stored = tempfile::tempdir().unwrap();
    let place = stored.path().join("mounted/here");
    fs::write(stored.path().join("mounted"), "not a directory").unwrap();
    let store = Store::directory(&place);
    let archiver = store.archiver(dir.path(), |_| {});
    until(&archiver, "it fails", |report| report.failures > 2);
    fs::remove_file(stored.path().join("mounted")).unwrap();
    until(&archiver, "it is mounted", |report| report.uploaded == 1);
    assert_eq!(store.there(), [(7, 0)]);
}

#[test]
fn half_an_upload_does_not_count() {
    let (bucket, dir) = (Bucket::start(), tempfile::tempdir().unwrap());
    let store = Store::bucket(&bucket);
    save(dir.path(), 7);
    bucket.die_at_part(Some(3));
    let archiver = store.archiver(dir.path(), |_| {});
    until(&archiver, "it dies", |report| report.failures >= 2);
    assert_eq!(bucket.names(), [""; 0]);
    drop(archiver);
    // The state is there and its seal is not: nor is that one.
    bucket.die_at_part(None);
    let archiver = store.archiver(dir.path(), |_| {});
    until(&archiver, "it is there", |report| report.uploaded == 1);
    drop(archiver);
    let place = "some/where/cluster/0/checkpoint-0000000000000007.0";
    assert_eq!(bucket.names(), [format!("{place}.seal"), format!("{place}.state")]);
    let sealed = bucket.take(&format!("{place}.seal"));
    assert_eq!(store.there(), []);
    let found = kept(&store.open(), PLACE).unwrap();
    assert!(found[0].sound().unwrap_err().contains("never finished"));
    // Nor one that lacks some of it, or whose seal is damaged.
    bucket.put(&format!("{place}.seal"), sealed.clone());
    bucket.damage(&format!("{place}.state"), |bytes| bytes.truncate(9_000));
    assert!(kept(&store.open(), PLACE).unwrap()[0].sound().unwrap_err().contains("9000 bytes"));
    bucket.put(&format!("{place}.seal"), sealed[..20].to_vec());
    assert!(kept(&store.open(), PLACE).unwrap()[0].sound().unwrap_err().contains("damaged"));
}

#[test]
fn damage_is_seen_on_the_way_there_and_on_the_way_back() {
    let (bucket, dir) = (Bucket::start(), tempfile::tempdir().unwrap());
    let store = Store::bucket(&bucket);
    save(dir.path(), 7);
    let file = dir.path().join(file_name(Epoch(7)));
    let mut bytes = fs::read(&file).unwrap();
    bytes[9_999] ^= 1;
    fs::write(&file, bytes).unwrap();
    let archiver = store.archiver(dir.path(), |_| {});
    save(dir.path(), 9);
    until(&archiver, "the next is there", |report| report.epoch == Epoch(9));
    assert_eq!(store.there(), [(9, 0)], "the damaged one is not");
    bucket.damage("some/where/cluster/0/checkpoint-0000000000000009.0.state", |bytes| bytes[12_345] ^= 1);
    let said = store.read(9).unwrap_err();
    assert!(said.contains("damaged") && said.contains(&file_name(Epoch(9))), "{said}");
}

#[test]
fn members_take_turns_and_those_that_may_differ_do_not() {
    let (bucket, dir) = (Bucket::start(), tempfile::tempdir().unwrap());
    let store = Store::bucket(&bucket);
    save(dir.path(), 7);
    let archiver = store.archiver(dir.path(), |_| {});
    until(&archiver, "it is there", |report| report.uploaded == 1);
    drop(archiver);
    let member = store.archiver(dir.path(), |rules| rules.node = NodeId(1));
    until(&member, "it has looked", |report| report.epoch == Epoch(7));
    save(dir.path(), 8);
    until(&member, "the next is there", |report| report.epoch == Epoch(8));
    assert_eq!(store.there(), [(7, 0), (8, 1)]);
    drop(member);
    let other = |rules: &mut Rules| (rules.node, rules.patience) = (NodeId(2), None);
    let other = store.archiver(dir.path(), other);
    until(&other, "both are there", |report| report.uploaded == 2);
    assert_eq!(store.there(), [(7, 0), (7, 2), (8, 1), (8, 2)]);
    drop(other);
    // One with patience leaves it to others for so long.
    let patient = store.archiver(dir.path(), |rules| {
        (rules.node, rules.patience) = (NodeId(3), Some(Duration::MAX));
    });
    save(dir.path(), 9);
    let other = store.archiver(dir.path(), |_| {});
    until(&other, "it is there", |report| report.epoch == Epoch(9));
    assert_eq!(patient.standing().report().uploaded, 0);
}

#[test]
fn a_cluster_of_the_same_name_is_not_mixed_up_with_the_one_before() {
    let bucket = Bucket::start();
    let store = Store::bucket(&bucket);
    let (before, now) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    save(before.path(), 100);
    let archiver = store.archiver(before.path(), |_| {});
    until(&archiver, "it is there", |report| report.uploaded == 1);
    drop(archiver);
    save(now.path(), 5);
    let archiver = store.archiver(now.path(), |_| {});
    let report = until(&archiver, "it refuses", |report| report.failing.is_some());
    assert!(report.failing.unwrap().contains("another prefix"));
    assert_eq!(store.there(), [(100, 0)]);
}

#[test]
fn a_checkpoint_that_another_partition_lacks_takes_no_other_s_place() {
    let stored = tempfile::tempdir().unwrap();
    let store = Store::directory(stored.path());
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let archiver = |partition: u16| {
        store.archiver(dirs[usize::from(partition)].path(), |rules| {
            (rules.owner.starts, rules.owner.partition) = (vec![0, 512], partition);
            rules.node = NodeId(partition);
        })
    };
    let epochs = |partition: u16| {
        let found = kept(&store.open(), &format!("cluster/{partition}")).unwrap();
        found.iter().map(|kept| kept.epoch.0).collect::<Vec<_>>()
    };
    [3, 5, 8, 9].iter().for_each(|epoch| save(dirs[0].path(), *epoch));
    let first = archiver(0);
    until(&first, "all are there", |report| report.uploaded == 4);
    assert_eq!(epochs(0), [3, 5, 8, 9], "the other partition may have any of them yet");
    [3, 5].iter().for_each(|epoch| save(dirs[1].path(), *epoch));
    let second = archiver(1);
    until(&second, "two are there", |report| report.uploaded == 2);
    save(dirs[0].path(), 20);
    until(&first, "the newest is there", |report| report.epoch == Epoch(20) && report.uploading.is_none());
    assert_eq!(
        (epochs(0), epochs(1)),
        (vec![3, 5, 8, 9, 20], vec![3, 5]),
        "3 and 5 are what can be restored"
    );
    [8, 9].iter().for_each(|epoch| save(dirs[1].path(), *epoch));
    // The epoch is that of a listing after the last upload; two were there before it, too.
    until(&second, "older ones go", |report| report.epoch == Epoch(9) && report.kept == 2);
    assert_eq!(epochs(1), [8, 9]);
}
