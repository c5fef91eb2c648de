//! Directories that are opened, refused, joined and rebuilt.

use super::*;
use ordain_role::{Directory, DiskOp};
use ordain_runtime::FsDirectory;

use crate::cluster::{ClusterConfig, ClusterFile};

/// Node `node` of a cluster of two partitions and two replicas.
fn place(node: u16, change: impl Fn(&mut ClusterFile)) -> Membership {
    let nodes: String = (0..4)
        .map(|id| {
            let at = |kind: usize| format!("\"127.0.0.1:{}\"", 7000 + kind * 100 + id);
            format!("[[node]]\nid = {id}\ncluster = {}\nresp = {}\nadmin = {}\n", at(0), at(1), at(2))
        })
        .collect();
    let head = "cluster = \"c\"\npartitions = 2\nreplicas = 2\nthreads = 2\n";
    let mut file = ClusterFile::parse(&format!("{head}{nodes}")).unwrap();
    change(&mut file);
    Membership::new(ClusterConfig::new(&file).unwrap(), node).unwrap()
}

fn open(directory: &Path, place: Option<&Membership>) -> Result<Identity, IdentityError> {
    let threads = place.map_or(2, |place| place.cluster.layout.threads());
    Identity::open(directory, &Engine::default().defaults(), threads, place)
}

/// What the file says, as it was written before there were checksums.
fn plain(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let (before, _) = text.rsplit_once(",\n  \"checksum\"").unwrap();
    format!("{before}\n}}")
}

#[test]
fn no_bit_of_it_can_be_flipped_and_one_without_a_checksum_gets_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let mut first = open(dir.path(), None).unwrap();
    first.note_log(dir.path()).unwrap();
    let bytes = fs::read(&path).unwrap();
    for bit in 0..bytes.len() * 8 {
        let mut other = bytes.clone();
        other[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &other).unwrap();
        assert!(Identity::read(dir.path()).is_err(), "bit {bit}");
    }
    fs::write(&path, &bytes).unwrap();
    fs::write(&path, plain(&path)).unwrap();
    assert_eq!(open(dir.path(), None).unwrap(), first);
    // It is not written before the rest was found to be in order, and then with its checksum.
    let mut other = Identity::open(dir.path(), &Engine::default().defaults(), 3, None).unwrap();
    assert!(!fs::read_to_string(&path).unwrap().contains("checksum"));
    other.note_log(dir.path()).unwrap();
    assert!(fs::read_to_string(&path).unwrap().contains("checksum"));
    assert_eq!(Identity::read(dir.path()).unwrap().unwrap(), other);
}

/// A directory belongs to a cluster with the prefixes that it was written with; one that was written without says nothing of them.
#[test]
fn a_directory_has_the_prefixes_that_it_was_written_with() {
    let regions = |all: &'static [&'static str]| {
        place(1, |file| {
            let region = |prefix: &&str| crate::cluster::RegionEntry {
                name: format!("region {prefix}"),
                prefixes: vec![(*prefix).to_owned()],
            };
            file.region = all.iter().map(region).collect();
        })
    };
    let (plain, placed) = (place(1, |_| {}), regions(&["eu:", "ü"]));
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path(), Some(&placed)).unwrap();
    assert_eq!(open(dir.path(), Some(&placed)).unwrap(), first);
    for other in [&plain, &regions(&["eu:", "us:"]), &regions(&["ü", "eu:"])] {
        let error = open(dir.path(), Some(other)).unwrap_err();
        assert!(matches!(error, IdentityError::Layout { .. }), "{error}");
        assert!(error.to_string().contains(r#"written with layout 1, partitions = 2, starts = [0, 512], threads = 2, prefixes of regions = [["eu:"], ["\\xc3\\xbc"]], not"#), "{error}");
    }
    let dir = tempfile::tempdir().unwrap();
    open(dir.path(), Some(&plain)).unwrap();
    assert!(!fs::read_to_string(dir.path().join(FILE)).unwrap().contains("regions"));
    assert!(matches!(open(dir.path(), Some(&placed)), Err(IdentityError::Layout { .. })));
}

#[test]
fn a_log_is_executed_at_one_level() {
    let dir = tempfile::tempdir().unwrap();
    let open = |level| {
        let engine: Engine = "qstore".parse().unwrap();
        Identity::open(dir.path(), &engine.options([("isolation", level)]).unwrap(), 2, None)
    };
    let (serializable, committed) = ("serializable", "read-committed");
    assert_eq!(open(serializable).unwrap().isolation, "serializable");
    // There is no log yet whose results could be others.
    let mut identity = open(committed).unwrap();
    identity.note_log(dir.path()).unwrap();
    assert_eq!(open(committed).unwrap(), identity);
    let error = open(serializable).unwrap_err().to_string();
    assert!(error.contains("start with --isolation read-committed"), "{error}");
    // One that was written before there were levels has this one.
    let path = dir.path().join(FILE);
    let text = plain(&path);
    fs::write(&path, text.replace("  \"isolation\": \"read-committed\",\n", "")).unwrap();
    assert_eq!(open(serializable).unwrap().isolation, "serializable");
    assert!(matches!(open(committed), Err(IdentityError::Option { .. })));
}

#[test]
fn an_identity_stays_and_a_damaged_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = open(dir.path(), None).unwrap();
    assert!(!first.has_log);
    first.note_log(dir.path()).unwrap();
    assert_eq!(open(dir.path(), None).unwrap(), first);
    let path = dir.path().join(FILE);
    let text = plain(&path);
    let after = |text: &str| {
        fs::write(&path, text).unwrap();
        open(dir.path(), None)
    };
    let other = text.replace("\"format\": 3", "\"format\": 9");
    assert!(matches!(after(&other), Err(IdentityError::Format { found: 9, .. })));
    // A format that is not read any more, which has less to say.
    let before =
        "{\"format\": 1, \"engine\": \"calvin\", \"cluster\": \"a\", \"node\": 0, \"has_log\": true}";
    assert!(matches!(after(before), Err(IdentityError::Format { found: 1, .. })));
    let other = text.replace("calvin", "other");
    assert!(matches!(after(&other), Err(IdentityError::Engine { .. })));
    assert!(matches!(after(&text[..10]), Err(IdentityError::Damaged { .. })));
}

#[test]
fn a_directory_of_an_older_format_is_made_of_this_one_once_it_is_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = open(dir.path(), None).unwrap();
    first.note_log(dir.path()).unwrap();
    let path = dir.path().join(FILE);
    let old = plain(&path).replace("\"format\": 3", "\"format\": 2");
    fs::write(&path, &old).unwrap();
    let mut raised = open(dir.path(), None).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), old, "to look at it changes nothing");
    raised.note_log(dir.path()).unwrap();
    assert!(fs::read_to_string(&path).unwrap().contains("\"format\": 3"));
    assert_eq!(open(dir.path(), None).unwrap(), first);
}

#[test]
fn a_node_on_its_own_may_change_its_threads() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path(), None).unwrap();
    let second = Identity::open(dir.path(), &Engine::default().defaults(), 5, None).unwrap();
    assert_eq!((second.threads, &second.cluster), (5, &first.cluster));
    assert_eq!(second.for_log(), first.for_log());
    assert_eq!(Identity::open(dir.path(), &Engine::default().defaults(), 5, None).unwrap(), second);
}

#[test]
fn a_directory_belongs_to_one_node_of_one_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let mine = place(3, |_| ());
    let identity = open(dir.path(), Some(&mine)).unwrap();
    assert_eq!((identity.partition, identity.replica, identity.node), (1, 1, 3));
    assert_eq!(open(dir.path(), Some(&mine)).unwrap(), identity);
    let text = fs::read_to_string(dir.path().join(FILE)).unwrap();

    let refused = |place: Option<&Membership>, words: &[&str]| {
        let error = open(dir.path(), place).unwrap_err().to_string();
        words.iter().for_each(|word| assert!(error.contains(word), "'{word}' is not in: {error}"));
        assert_eq!(fs::read_to_string(dir.path().join(FILE)).unwrap(), text, "a refusal changes nothing");
    };
    refused(None, &["belongs to node 3 of cluster 'c'", "not to a node on its own", "--data-dir"]);
    refused(Some(&place(1, |_| ())), &["node 3 of cluster 'c'", "not to node 1 of cluster 'c'"]);
    refused(Some(&place(3, |file| file.cluster = "d".into())), &["cluster 'c'", "cluster 'd'"]);
    refused(Some(&place(3, |file| file.starts = Some(vec![0, 500]))), &["[0, 512]", "[0, 500]"]);
    refused(Some(&place(3, |file| file.threads = 1)), &["threads = 2", "threads = 1"]);

    let alone = tempfile::tempdir().unwrap();
    open(alone.path(), None).unwrap();
    let error = open(alone.path(), Some(&place(0, |_| ()))).unwrap_err().to_string();
    assert!(error.contains("belongs to a node on its own, not to node 0 of cluster 'c'"), "{error}");
}

#[test]
fn a_node_that_joins_has_nothing_and_is_in_a_generation_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let mine = place(3, |_| ());
    fs::write(dir.path().join(LOCK), "4711").unwrap();
    let joined = Identity::join(dir.path(), &mine, 77).unwrap();
    assert_eq!((joined.generation, joined.node), (77, 3));
    let error = Identity::join(dir.path(), &mine, 78).unwrap_err().to_string();
    assert!(error.contains("holds ordain.json") && error.contains("without --join"), "{error}");
    assert_eq!(open(dir.path(), Some(&mine)).unwrap(), joined, "it stays what it has become");
    // What was written before there were generations is of the first.
    let path = dir.path().join(FILE);
    let text = plain(&path).replace("\"generation\": 77,", "");
    fs::write(&path, text).unwrap();
    assert_eq!(open(dir.path(), Some(&mine)).unwrap().generation, 0);
}

/// A directory with a log and what came in from others; and what its files are.
fn filled() -> (tempfile::TempDir, impl Fn(&Path) -> Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    for name in ["log-1.seg", "log-2.seg", "inbox-1.seg", "council-log-1.seg"] {
        fs::write(dir.path().join(name), name).unwrap();
    }
    let names = |path: &Path| {
        let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
        names.retain(|name| name.ends_with(".seg"));
        names.sort();
        names
    };
    (dir, names)
}

/// What a start does before it uses anything of a directory; it may die after the removal of so many files.
fn begin(path: &Path, mine: &Membership, dies_after: Option<usize>) -> Identity {
    let mut identity = open(path, Some(mine)).unwrap();
    let Some(how) = identity.pending() else { return identity };
    let mut files = FsDirectory::open(path).unwrap();
    if let Some(count) = dies_after {
        let is_in_vain = |name: &str| {
            (how.without_receive_journal && name.starts_with("inbox-"))
                || (how.without_log && name.starts_with("log-"))
        };
        let names = files.list().unwrap().into_iter().map(|(name, _)| name).filter(|name| is_in_vain(name));
        for file in names.take(count) {
            files.apply(&DiskOp::Remove { file }).unwrap();
        }
        return identity;
    }
    ordain_deterministic::assembly::discard(&mut files, how).unwrap();
    identity.note_removed(path).unwrap();
    identity
}

#[test]
fn a_rebuild_is_carried_out_whenever_the_node_dies() {
    let mine = place(3, |_| ());
    let ways = [(false, false), (false, true), (true, false), (true, true)];
    for how in
        ways.map(|(without_log, without_receive_journal)| Rebuild { without_log, without_receive_journal })
    {
        for deaths in [&[][..], &[0], &[1], &[2], &[3], &[0, 1, 1, 3]] {
            let (dir, names) = filled();
            let mut identity = open(dir.path(), Some(&mine)).unwrap();
            identity.note_log(dir.path()).unwrap();
            identity.note_rebuild(dir.path(), how).unwrap();
            let has_log = !how.without_log;
            for count in deaths {
                let died = begin(dir.path(), &mine, Some(*count));
                assert_eq!((died.rebuilds, died.has_log), (1, has_log));
                assert_eq!(died.pending(), Some(how), "it goes on with it");
            }
            let begun = begin(dir.path(), &mine, None);
            let receive_journal: &[&str] = if how.without_receive_journal { &[] } else { &["inbox-1.seg"] };
            let log: &[&str] = if has_log { &["log-1.seg", "log-2.seg"] } else { &[] };
            assert_eq!(names(dir.path()), [&["council-log-1.seg"], receive_journal, log].concat());
            assert_eq!((begun.rebuilds, begun.has_log, begun.pending()), (1, has_log, None));
            // What it has got since then stays.
            fs::write(dir.path().join("inbox-9.seg"), "new").unwrap();
            assert_eq!(begin(dir.path(), &mine, None), begun);
            assert!(names(dir.path()).contains(&"inbox-9.seg".to_owned()));
        }
    }
}

#[test]
fn a_second_rebuild_forgets_nothing_of_the_first() {
    let mine = place(1, |_| ());
    let (dir, names) = filled();
    let mut identity = open(dir.path(), Some(&mine)).unwrap();
    identity.note_log(dir.path()).unwrap();
    identity.note_rebuild(dir.path(), Rebuild { without_log: true, without_receive_journal: true }).unwrap();
    identity
        .note_rebuild(dir.path(), Rebuild { without_log: false, without_receive_journal: false })
        .unwrap();
    let begun = begin(dir.path(), &mine, None);
    assert_eq!((begun.rebuilds, begun.has_log), (2, false));
    assert_eq!(names(dir.path()), ["council-log-1.seg"]);
    // What was written before nodes could be rebuilt is of one that was not.
    let path = dir.path().join(FILE);
    let text = plain(&path).replace("\"started_over\": 2,", "");
    fs::write(&path, text).unwrap();
    let former = open(dir.path(), Some(&mine)).unwrap();
    assert_eq!((former.rebuilds, former.pending()), (0, None));
}

#[test]
fn members_have_logs_of_one_identity_and_others_do_not() {
    let log = |node| {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path(), Some(&place(node, |_| ()))).unwrap().for_log()
    };
    assert_eq!(log(1), log(3));
    assert_ne!(log(0), log(1));
}
