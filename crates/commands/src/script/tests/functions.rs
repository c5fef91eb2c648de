//! FUNCTION and FCALL.

use super::*;

const LIBRARY: &str = "#!lua name=lib
local c = 0
redis.register_function('f', function(keys, args) c = c + 1 return {c, keys[1], args[1], #keys, #args} end)
redis.register_function{function_name='g', callback=function(keys) return redis.call('set', keys[1], '1') end,
  flags={'no-writes'}, description='desc'}
redis.register_function('w', function(keys) return redis.call('incr', keys[1]) end)
redis.register_function('fails', function(keys) redis.call('incr', keys[1]) error('boo') end)";

#[test]
fn functions_are_loaded_called_listed_and_deleted() {
    let mut db = Database::new();
    assert_eq!(db.run(&["FUNCTION", "LIST"]), "[]");
    assert_eq!(db.run(&["FUNCTION", "LOAD", LIBRARY]), "lib");
    assert_eq!(db.run(&["FUNCTION", "LOAD", LIBRARY]), "-ERR Library 'lib' already exists");
    assert_eq!(db.run(&["FCALL", "f", "1", "k", "a"]), "[1, k, a, 1, 1]");
    assert_eq!(db.run(&["FCALL", "f", "1", "k", "a"]), "[1, k, a, 1, 1]", "a library remembers nothing");
    assert_eq!(db.run(&["FCALL", "w", "1", "n"]), "1");
    assert_eq!(db.run(&["FCALL", "w", "x", "n"]), "-ERR Bad number of keys provided");
    assert_eq!(db.run(&["FCALL_RO", "g", "-1"]), "-ERR Number of keys can't be negative");
    assert_eq!(db.run(&["FCALL", "W", "2", "n"]), "-ERR Number of keys can't be greater than number of args");
    assert_eq!(
        db.run(&["FCALL_RO", "w", "1", "n"]),
        "-ERR Can not execute a script with write flag using *_ro command."
    );
    let refused =
        "-ERR Write commands are not allowed from read-only scripts. script: g, on @user_function:4.";
    assert_eq!(db.run(&["FCALL_RO", "g", "1", "n"]), refused);
    assert_eq!(db.run(&["FCALL", "g", "1", "n"]), refused);
    assert_eq!(
        db.run(&["FCALL", "fails", "1", "n"]),
        "-ERR user_function:7: boo script: fails, on @user_function:7."
    );
    assert_eq!(db.run(&["GET", "n"]), "1");
    let list = "[M[library_name, lib, engine, LUA, functions, [M[name, f, description, nil, flags, S[]], \
                M[name, g, description, desc, flags, S[no-writes]], M[name, w, description, nil, flags, S[]], \
                M[name, fails, description, nil, flags, S[]]]]]";
    assert_eq!(db.run(&["FUNCTION", "LIST"]), list);
    assert_eq!(db.run(&["FUNCTION", "LIST", "LIBRARYNAME", "x*"]), "[]");
    assert!(
        db.run(&["FUNCTION", "LIST", "WITHCODE", "LIBRARYNAME", "l*"])
            .contains("library_code, #!lua name=lib")
    );
    assert_eq!(db.run(&["FUNCTION", "LIST", "LIBRARYNAME"]), "-ERR library name argument was not given");
    assert_eq!(db.run(&["FUNCTION", "LIST", "x"]), "-ERR Unknown argument x");
    // A new version replaces all of the old.
    let next = "#!lua name=lib\nredis.register_function('f', function() return 'new' end)";
    assert_eq!(db.run(&["FUNCTION", "LOAD", "REPLACE", next]), "lib");
    assert_eq!(db.run(&["FCALL", "f", "0"]), "new");
    assert_eq!(db.run(&["FCALL", "w", "1", "n"]), "-ERR Function not found");
    assert_eq!(db.run(&["FUNCTION", "DELETE", "nolib"]), "-ERR Library not found");
    assert_eq!(db.run(&["FUNCTION", "DELETE", "lib"]), "+OK");
    assert_eq!(db.run(&["FCALL", "f", "0"]), "-ERR Function not found");
    assert_eq!(db.run(&["FUNCTION", "LOAD", LIBRARY]), "lib");
    assert_eq!(db.run(&["FUNCTION", "FLUSH"]), "+OK");
    assert_eq!(db.run(&["FUNCTION", "LIST"]), "[]");
}

#[test]
fn a_payload_is_restored_as_a_whole_or_not_at_all() {
    let mut db = Database::new();
    let payload = |sources: &[String]| {
        let mut out = Vec::new();
        payload::write(sources.iter().map(String::as_bytes), &mut out);
        out
    };
    let library = |name: &str, function: &str, more: &str| {
        format!(
            "#!lua name={name}\n{more} redis.register_function('{function}', function() return '{name}' end)"
        )
    };
    let restore = |db: &mut Database, payload: &[u8], policy: &str| {
        db.run(&[&b"FUNCTION"[..], b"RESTORE", payload, policy.as_bytes()])
    };
    let both = payload(&[library("a", "fa", ""), library("b", "fb", "")]);
    assert_eq!(restore(&mut db, &both, "append"), "+OK");
    let loops = "for i = 1, 8e5 do end";
    for (sources, policy, text) in [
        (
            vec![library("c", "fc", ""), library("a", "fz", "")],
            "append",
            "ERR Library a already exists".to_string(),
        ),
        (
            vec![library("c", "fc", ""), library("d", "FB", "")],
            "replace",
            "ERR Function FB already exists".into(),
        ),
        (vec![library("c", "touch_all", "")], "flush", "ERR Function touch_all already exists".into()),
        (
            vec![library("c", "fc", ""), "#!lua name=d\n".into()],
            "flush",
            "ERR No functions registered".into(),
        ),
        // Each by itself is within what a library may do; all of them are not within what a payload may.
        (
            (0..30).map(|i| library(&format!("l{i}"), &format!("fl{i}"), loops)).collect(),
            "flush",
            over_restore_budget(),
        ),
    ] {
        let before = db.digest();
        let reply = restore(&mut db, &payload(&sources), policy);
        assert!(reply.starts_with(&format!("-{text}")), "{policy}: {reply}");
        assert_eq!(db.digest(), before, "{policy}: {text}");
    }
    assert_eq!(db.run(&["FCALL", "fb", "0"]), "b");
    // A library that gives way takes its functions with it, so that another may have their names.
    let other = payload(&[library("a", "fb2", ""), library("b", "fa", "")]);
    assert_eq!(restore(&mut db, &other, "replace"), "+OK");
    assert_eq!(db.run(&["FCALL", "fa", "0"]), "b");
    assert_eq!(db.run(&["FCALL", "fb", "0"]), "-ERR Function not found");
    let before = db.digest();
    let last = payload(&[library("c", "fa", "")]);
    assert_eq!(restore(&mut db, &last, "flush"), "+OK");
    assert_eq!(db.run(&["FCALL", "fa", "0"]), "c");
    assert_eq!(restore(&mut db, &other, "flush"), "+OK");
    assert_eq!(db.digest(), before);
}

/// As Redis 7.0.15 answers.
#[test]
fn names_of_functions_ignore_case_and_those_of_libraries_may_be_quoted() {
    let mut db = Database::new();
    let foo = "redis.register_function('foo', function() return 1 end)";
    assert_eq!(db.run(&["FUNCTION", "LOAD", &format!("#!LUA NAME=\"l2\"\n{foo}")]), "l2");
    for name in ["foo", "FOO", "Foo"] {
        assert_eq!(db.run(&["FCALL", name, "0"]), "1", "{name}");
    }
    let other = "#!lua name=l6\nredis.register_function('FOO', function() return 2 end)";
    assert_eq!(db.run(&["FUNCTION", "LOAD", other]), "-ERR Function FOO already exists");
    assert_eq!(db.run(&["FUNCTION", "DELETE", "L2"]), "-ERR Library not found");
}

#[test]
fn libraries_that_are_wrong_are_refused() {
    let mut db = Database::new();
    let names = "Library names can only contain letters, numbers, or underscores(_) and must be at least one character long";
    db.run(&["FUNCTION", "LOAD", LIBRARY]);
    let before = db.digest();
    for (code, text) in [
        ("return 1", "ERR Missing library metadata".to_string()),
        ("#!lua\nreturn 1", "ERR Library name was not given".into()),
        ("#!lua name=\n", format!("ERR {names}")),
        ("#!lua name=a-b\n", format!("ERR {names}")),
        ("#!lua name=lib2", "ERR Invalid library metadata".into()),
        ("#!lua name=lib2\nreturn 1", "ERR No functions registered".into()),
        ("#!js name=lib2\nreturn 1", "ERR Engine 'js' not found".into()),
        ("#! name=lib2\nreturn 1", "ERR Engine '' not found".into()),
        ("#!lua name='l 2'\nreturn 1", format!("ERR {names}")),
        ("#!lua name=\"lib2\nreturn 1", "ERR Invalid library metadata".into()),
        ("#!lua name=lib2 foo=1\nreturn 1", "ERR Invalid metadata value given: foo=1".into()),
        (
            "#!lua name=lib2\nfoo bar",
            "ERR Error compiling function: user_function:2: '=' expected near 'bar'".into(),
        ),
    ] {
        assert_eq!(db.run(&["FUNCTION", "LOAD", code]), format!("-{text}"), "{code}");
    }
    for (body, text) in [
        ("redis.register_function('f', function() end)", "ERR Function f already exists".to_string()),
        ("redis.register_function('touch_all', function() end)", "ERR Function touch_all already exists".into()),
        ("redis.register_function('h h', function() end)", format!("ERR Error registering functions: ERR {names}")),
        ("redis.register_function('h', 1)", "ERR Error registering functions: ERR second argument to redis.register_function must be a function".into()),
        ("redis.register_function('h', function() end) redis.register_function('h', function() end)", "ERR Error registering functions: ERR Function already exists in the library".into()),
        ("redis.register_function{function_name='h'}", "ERR Error registering functions: ERR redis.register_function must get a callback argument".into()),
        ("redis.register_function{callback=function() end}", "ERR Error registering functions: ERR redis.register_function must get a function name argument".into()),
        ("redis.register_function{function_name='h', callback=function() end, flags={'x'}}", "ERR Error registering functions: ERR unknown flag given".into()),
        ("redis.register_function{function_name='h', callback=function() end, foo=1}", "ERR Error registering functions: ERR unknown argument given to redis.register_function".into()),
        ("local x = KEYS[1]", "ERR Error registering functions: ERR user_function:2: Script attempted to access nonexistent global variable 'KEYS'".into()),
        ("foo = 1", "ERR Error registering functions: ERR user_function:2: Attempt to modify a readonly table".into()),
        ("while true do end", over_load_budget()[1..].to_string()),
    ] {
        assert_eq!(db.run(&["FUNCTION", "LOAD", &format!("#!lua name=lib2\n{body}")]), format!("-{text}"), "{body}");
    }
    assert!(
        db.run(&["FUNCTION", "LOAD", "#!lua name=lib2\nredis.call('get','x')"])
            .contains("nonexistent global variable 'call'")
    );
    assert_eq!(db.run(&["FUNCTION", "LOAD", "FOO", LIBRARY]), "-ERR Unknown option given: FOO");
    assert_eq!(db.digest(), before);
}

#[test]
fn fcall_of_a_native_procedure_is_a_call_of_it() {
    let mut db = Database::new();
    assert_eq!(db.run(&["FCALL", "touch_all", "2", "p", "q", "text"]), "2");
    assert_eq!(db.run(&["MGET", "p", "q"]), "[text, text]");
    let (id, encoded) = db.encode(&[b"FCALL", b"touch_all", b"2", b"p", b"q", b"text"]).unwrap();
    assert_eq!((id, encoded), (ids::FIRST_NATIVE, args::encode(&["p", "q", "text"])));
    assert_eq!(db.run(&["FCALL_RO", "length", "1", "p"]), "4");
    let before = db.digest();
    for (words, reply) in [
        (
            &["FCALL_RO", "touch_all", "1", "p", "x"][..],
            "-ERR Can not execute a script with write flag using *_ro command.",
        ),
        (&["FCALL_RO", "length", "0"], "-ERR syntax error"),
        (&["FCALL", "length", "0"], "-ERR syntax error"),
        (&["FCALL", "length", "x", "p"], "-ERR Bad number of keys provided"),
        (&["FCALL", "length", "-1", "p"], "-ERR Number of keys can't be negative"),
        (&["FCALL", "length", "2", "p"], "-ERR Number of keys can't be greater than number of args"),
        // Only what was registered for it is within reach.
        (&["FCALL", "get", "1", "p"], "-ERR Function not found"),
        (&["FCALL", "ordain.commit", "0"], "-ERR Function not found"),
        (&["FCALL", "LENGTH", "1", "p"], "-ERR Function not found"),
    ] {
        assert_eq!(db.run(words), reply, "{words:?}");
    }
    assert_eq!(db.digest(), before);
}
