//! Options of engines: each through every door of `ordain serve` and `ordain cluster up`, and what is refused at them.

use std::fs;

use ordain_engines::registry::{self, Engine};
use ordain_lab::options::variable;
use ordain_model::{OptionInfo, OptionKind};

use crate::support::{Expect, Server, ordain, run, serve};

/// The engine with the most options.
const ENGINE: &str = "qstore";
/// Engines that have all options together.
const ENGINES: [&str; 6] = [ENGINE, "timestamp", "maat", "fwkv", "regions-silo", "regions-mvocc"];

fn options_of(engine: &str) -> Vec<&'static OptionInfo> {
    engine.parse::<Engine>().unwrap().offers().iter().map(|offer| offer.info).collect()
}

/// Options with which others are refused, tried by themselves.
const ALONE: [&str; 1] = ["ro-mode"];

/// A value that is not the engine's default.
fn other_value(engine: &str, info: &OptionInfo) -> String {
    let default = engine.parse::<Engine>().unwrap().defaults().value(info).to_string();
    let tried: Vec<String> = match info.kind {
        OptionKind::Name { names, .. } => names.iter().map(|name| (*name).to_owned()).collect(),
        OptionKind::Bool => vec!["true".into(), "false".into()],
        OptionKind::Integer { min, .. } => vec![min.to_string(), (min + 1).to_string()],
        kind => panic!("give {kind:?} values here"),
    };
    tried.into_iter().find(|value| *value != default).unwrap()
}

/// What a node says of options.
fn shown(server: &Server, infos: &[&'static OptionInfo]) -> Vec<(&'static str, String)> {
    let mut client = server.client();
    infos
        .iter()
        .map(|info| {
            let reply = client.run(&format!("CONFIG GET {}", info.name));
            (info.name, reply.items()[1].text().to_owned())
        })
        .collect()
}

#[test]
fn every_option_comes_in_by_every_door() {
    let tried: Vec<&OptionInfo> = ENGINES.into_iter().flat_map(options_of).collect();
    assert!(registry::all_options().iter().all(|info| tried.contains(info)), "{tried:?}");
    for engine in ENGINES {
        let (alone, together): (Vec<_>, Vec<_>) =
            options_of(engine).into_iter().partition(|info| ALONE.contains(&info.name));
        [together]
            .into_iter()
            .chain(alone.into_iter().map(|info| vec![info]))
            .for_each(|infos| come_in_by_every_door(engine, &infos));
    }
}

fn come_in_by_every_door(engine: &str, infos: &[&'static OptionInfo]) {
    let wanted: Vec<(&str, String)> =
        infos.iter().map(|info| (info.name, other_value(engine, info))).collect();
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: String| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    // A number and a boolean stand bare in a file.
    let line = |(info, (name, value)): (&&OptionInfo, &(&str, String))| match info.kind {
        OptionKind::Name { .. } => format!("{name} = \"{value}\"\n"),
        _ => format!("{name} = {value}\n"),
    };
    let all = || infos.iter().zip(&wanted);
    let flags: String = all().filter(|(info, _)| info.is_flag).map(line).collect();
    let others: String = all().filter(|(info, _)| !info.is_flag).map(line).collect();
    let table: String = all().map(line).collect();
    let start = |args: &[String], environment: &[(String, String)]| {
        let mut command = serve(["--ephemeral", "--threads", "1", "--engine", engine]);
        command.args(args).envs(environment.iter().cloned());
        Server::start(command)
    };
    let by_flag = all().flat_map(|(info, (name, value))| match info.is_flag {
        true => [format!("--{name}"), value.clone()],
        false => ["--option".to_owned(), format!("{name}={value}")],
    });
    let by_name = wanted.iter().flat_map(|(name, value)| ["--option".to_owned(), format!("{name}={value}")]);
    let variables =
        all().filter(|(info, _)| info.is_flag).map(|(info, (_, value))| (variable(info), value.clone()));
    let others_by_name: Vec<String> =
        all().filter(|(info, _)| !info.is_flag).map(|(_, (name, value))| format!("{name}={value}")).collect();
    let environment =
        variables.chain([("ORDAIN_OPTION".to_owned(), others_by_name.join(","))]).collect::<Vec<_>>();
    let keys = vec!["--config".to_owned(), file("keys.toml", format!("{flags}[option]\n{others}"))];
    let table = vec!["--config".to_owned(), file("table.toml", format!("[option]\n{table}"))];
    for (args, environment) in [
        (by_flag.collect::<Vec<_>>(), vec![]),
        (by_name.collect(), vec![]),
        (vec![], environment.clone()),
        (keys.clone(), vec![]),
        (table, vec![]),
    ] {
        let server = start(&args, &environment);
        assert_eq!(shown(&server, infos), wanted, "{args:?} {environment:?}");
        server.stop();
    }

    // A flag beats the environment, which beats the file; nothing said is the engine's default.
    let defaults = engine.parse::<Engine>().unwrap().defaults();
    let defaults: Vec<(&str, String)> =
        infos.iter().map(|info| (info.name, defaults.value(info).to_string())).collect();
    let back: Vec<String> = defaults
        .iter()
        .flat_map(|(name, value)| ["--option".to_owned(), format!("{name}={value}")])
        .collect();
    let server = start(&[keys, back].concat(), &environment);
    assert_eq!(shown(&server, infos), defaults);
    server.stop();
    let server = start(&[], &[]);
    assert_eq!(shown(&server, infos), defaults);
    server.stop();
}

#[test]
fn what_no_engine_or_another_one_has_is_refused_by_name() {
    let start = |engine: &str, args: &[&str]| {
        let mut command = serve(["--ephemeral", "--engine", engine]);
        command.args(args);
        run(command)
    };
    for (engine, args, words) in [
        (
            "calvin",
            &["--option", "prepare-wait=1ms"][..],
            &["there is no option 'prepare-wait'", "calvin has: reads"][..],
        ),
        (
            "calvin",
            &["--option", "execution=auto"],
            &["--execution auto is not for engine calvin", "--engine qstore"],
        ),
        (
            "paxflow",
            &["--isolation", "read-committed"],
            &["--isolation read-committed is not for engine paxflow"],
        ),
        (
            "no-wait",
            &["--reads", "session"],
            &["--reads session is not for engine no-wait", "say --engine", "calvin"],
        ),
        (
            "wait-die",
            &["--checkpoint-mode", "zigzag"],
            &["--checkpoint-mode zigzag is not for engine wait-die"],
        ),
        (
            "wait-die",
            &["--option", "backoff=linear"],
            &["'linear' is no way to back off: exp, none or deneva"],
        ),
        ("calvin", &["--option", "backoff=none"], &["--option backoff=none is not for engine calvin"]),
        (
            "calvin",
            &["--option", "window=0"],
            &["--option window: '0' is out of range: it takes 1 to 65536 transactions"],
        ),
        ("qstore", &["--option", "reads=fresh"], &["'fresh' is no way to run reads"]),
        (
            "qstore",
            &["--execution", "conservative", "--cascade", "abort"],
            &["--cascade abort is for --execution speculative or auto", "say --execution speculative"],
        ),
    ] {
        start(engine, args).refused_with(words);
    }
    for (args, words) in [
        (&["--option", "window"][..], &["NAME=VALUE"][..]),
        (&["--plan-ahead", "65"], &["'65' is out of range: it takes 0 to 64 batches"]),
        (&["--balance", "perhaps"], &["true or false"]),
        (&["--reads", "strict", "--option", "reads=session"], &["reads is given twice"]),
        (&["--option", "window=1,2"], &["window is given several values"]),
    ] {
        let ended = start("calvin", args);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        words.iter().for_each(|word| assert!(ended.stderr.contains(word), "{ended:?}"));
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ordain.toml");
    for (text, words) in [
        ("threads = 1\nwindow = 7", &["line 2: unknown key `window`", "[option]"][..]),
        ("[option]\nwindow = 0", &["--option window: '0'"]),
        ("[option]\nprepare-wait = \"1ms\"", &["no option 'prepare-wait'"]),
        ("plan_ahead = 65", &["'65' is out of range"]),
    ] {
        fs::write(&path, text).unwrap();
        let ended = run(ordain(["--ephemeral", "--config", path.to_str().unwrap()]));
        ended.refused_with(words);
    }
}

#[test]
fn a_cluster_keeps_its_options_but_for_those_that_stay() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let up = |args: &[&str]| {
        let mut command = ordain(["cluster", "up", "--base-port", "0", "--threads", "1", "--engine", ENGINE]);
        command.arg("--data-dir").arg(&data).args(args).arg("--ready-within-s").arg("0");
        run(command)
    };
    // It is written down before a node is started; nobody waits for that.
    up(&["--isolation", "read-committed", "--option", "window=7", "--plan-ahead", "1"])
        .fails_with(&["not ready"]);
    let text = fs::read_to_string(data.join("cluster.toml")).unwrap();
    for line in ["isolation = \"read-committed\"", "plan-ahead = 1", "[option]\nwindow = 7"] {
        assert!(text.contains(line), "{text}");
    }
    up(&["--reads", "strict", "--option", "window=8"]).fails_with(&["not ready"]);
    let text = fs::read_to_string(data.join("cluster.toml")).unwrap();
    assert!(
        text.contains("reads = \"strict\"") && text.contains("window = 8") && text.contains("plan-ahead = 1"),
        "{text}"
    );
    up(&["--isolation", "serializable"]).fails_with(&["has --isolation read-committed, not serializable"]);
}

#[test]
fn engines_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("engines.json");
    let ended = run(ordain(["engines", "--json", path.to_str().unwrap()]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let table = ended.stdout.join("\n");
    for word in ["qstore", "regions-mvocc", "--option window", "SIGMOD 2012", "auto"] {
        assert!(table.contains(word), "{word} is not in:\n{table}");
    }
    let json: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let engines = json["engines"].as_array().unwrap();
    assert_eq!(engines.len(), 15);
    assert!(engines.iter().all(|engine| engine["can"].as_array().is_some_and(|can| can.len() > 3)));
}
