//! EVAL, EVALSHA and SCRIPT: values, errors, what a script may touch and what it leaves.

use super::*;

#[test]
fn values_are_converted_as_redis_documents() {
    let mut db = Database::new();
    for (script, reply) in [
        ("return 3.99", "3"),
        ("return -3.99", "-3"),
        ("return 1e300", "-9223372036854775808"),
        ("return 'x'", "x"),
        ("return true", "1"),
        ("return false", "nil"),
        ("return nil", "nil"),
        ("return", "nil"),
        ("return {1,2,nil,4}", "[1, 2]"),
        ("return {1,{2,3.9,'x'},true,false}", "[1, [2, 3, x], 1, nil]"),
        ("return {a=1}", "[]"),
        ("return {ok='fine'}", "+fine"),
        ("return {err='foo bar'}", "-foo bar"),
        ("return redis.status_reply('fine')", "+fine"),
        ("return redis.error_reply('My Err')", "-My Err"),
        ("return redis.error_reply('-X Err')", "-X Err"),
        ("return redis.error_reply({})", "-ERR wrong number or type of arguments"),
        ("return {double=3.5}", "~3.5"),
        ("return {map={b=2,a=1}}", "M[b, 2, a, 1]"),
        ("return {set={a=true}}", "S[a]"),
        ("return function() end", "nil"),
        ("return {function() end, 1}", "[nil, 1]"),
        ("return KEYS[1] .. KEYS[3] .. ARGV[2] .. #KEYS .. #ARGV", "acy32"),
        ("return redis.sha1hex('')", "da39a3ee5e6b4b0d3255bfef95601890afd80709"),
        ("return redis.REDIS_VERSION", "7.0.15"),
        ("return redis.setresp(3)", "nil"),
        ("redis.setresp(3) return {true, false}", "[#true, #false]"),
        ("return redis.call('time')", "[1700000000, 123000]"),
        ("return redis.call('ping')", "+PONG"),
        ("return redis.replicate_commands()", "1"),
        ("return redis.log(redis.LOG_WARNING, 'x')", "nil"),
        ("return _VERSION", "Lua 5.1"),
        ("return loadstring('return 5')()", "5"),
        ("return type(rawget(_G,'redis'))", "table"),
        ("#!lua\nreturn 1", "1"),
    ] {
        assert_eq!(db.eval(script), reply, "{script}");
    }
}

#[test]
fn words_are_bytes() {
    let mut db = Database::new();
    let script = b"return {#KEYS[1], KEYS[1]:byte(1), #ARGV[1], ARGV[1]:byte(2), #ARGV}";
    assert_eq!(db.run(&[b"EVAL", &script[..], b"1", b"\xff\x00k", b"a\xfe", b"b"]), "[3, 255, 2, 254, 2]");
}

#[test]
fn replies_of_commands_become_lua_values() {
    let mut db = Database::new();
    for (script, reply) in [
        ("return redis.call('set','a','1')", "+OK"),
        ("return type(redis.call('set','a','1').ok)", "string"),
        ("return redis.call('get','a')", "1"),
        ("return redis.call('get','b')", "nil"),
        ("return tostring(redis.call('get','b'))", "false"),
        ("redis.setresp(3) return tostring(redis.call('get','b'))", "nil"),
        ("return redis.call('incr','a') + 1", "3"),
        ("redis.call('set','b',1.5) return redis.call('get','b')", "1.5"),
        ("redis.call('set','b',0.1) return redis.call('get','b')", "0.10000000000000001"),
        ("redis.call('set','b',1e100) return redis.call('get','b')", "1e+100"),
        ("redis.call('hset','c','f','1','g','2') return redis.call('hgetall','c')", "[f, 1, g, 2]"),
        ("redis.setresp(3) return redis.call('hgetall','c').map.g", "2"),
        ("return redis.call('mget','a','b','a')", "[2, 1e+100, 2]"),
    ] {
        assert_eq!(db.eval(script), reply, "{script}");
    }
}

#[test]
fn errors_are_worded_as_in_redis() {
    let mut db = Database::new();
    db.run(&["SET", "a", "abc"]);
    let at = |body: &str, line: u32| {
        format!(" script: {}, on @user_script:{line}.", String::from_utf8_lossy(&sha1_hex(body.as_bytes())))
    };
    for (script, text, line) in [
        ("x=1", "ERR user_script:1: Attempt to modify a readonly table", 1),
        ("return x", "ERR user_script:1: Script attempted to access nonexistent global variable 'x'", 1),
        ("error('boom')", "ERR user_script:1: boom", 1),
        ("error({err='MY err'})", "MY err", 1),
        ("error(nil)", "ERR nil", 1),
        ("return redis.call('nope')", "ERR Unknown Redis command called from script", 1),
        ("return redis.call('get')", "ERR Wrong number of args calling Redis command from script", 1),
        ("return redis.call()", "ERR Please specify at least one argument for this redis lib call", 1),
        ("return redis.call({})", "ERR Lua redis lib command arguments must be strings or integers", 1),
        (
            "return redis.call('set','a',true)",
            "ERR Lua redis lib command arguments must be strings or integers",
            1,
        ),
        ("\n\nreturn redis.call('incr','a')", "ERR value is not an integer or out of range", 3),
        ("string.foo=1", "ERR user_script:1: Attempt to modify a readonly table", 1),
        ("tostring=nil", "ERR user_script:1: Attempt to modify a readonly table", 1),
        ("KEYS=1", "ERR user_script:1: Attempt to modify a readonly table", 1),
        ("rawset(_G,'x',1)", "ERR Attempt to modify a readonly table", 1),
        ("table.insert(string,1)", "ERR Attempt to modify a readonly table", 1),
        ("setmetatable(_G,{})", "ERR Attempt to modify a readonly table", 1),
        ("return redis.sha1hex()", "ERR wrong number of arguments", 1),
        ("return redis.setresp(4)", "ERR RESP version must be 2 or 3.", 1),
        ("return redis.call('monitor')", "ERR This Redis command is not allowed from script", 1),
        ("return redis.call('SHUTDOWN','nosave')", "ERR This Redis command is not allowed from script", 1),
        ("return redis.call('blpop','a','0')", "ERR This Redis command is not allowed from script", 1),
        ("return redis.call('cluster','reset')", "ERR This Redis command is not allowed from script", 1),
        ("return redis.call('module','load','a')", "ERR This Redis command is not allowed from script", 1),
        ("return redis.call('module','nope')", "ERR Unknown Redis command called from script", 1),
        ("return redis.call('cluster','info')", "ERR Unknown Redis command called from script", 1),
        ("return redis.call('sync','a')", "ERR Wrong number of args calling Redis command from script", 1),
        ("return redis.call('multi')", "ERR This Redis command is not allowed from script", 1),
        ("return redis.call('eval','return 1','0')", "ERR This Redis command is not allowed from script", 1),
        (
            "return redis.call('keys','*')",
            "ERR This Redis command is not allowed from script: it goes over all keys, and a script has those that it declares",
            1,
        ),
        (
            "return redis.call('flushall')",
            "ERR This Redis command is not allowed from script: it goes over all keys, and a script has those that it declares",
            1,
        ),
        ("local a a.b=1", "ERR user_script:1: attempt to index local 'a' (a nil value)", 1),
        (
            "print('x')",
            "ERR user_script:1: Script attempted to access nonexistent global variable 'print'",
            1,
        ),
        ("local function f() return f() + 1 end f()", "ERR user_script:1: stack overflow", 1),
        (
            "#!lua flags=no-writes\nreturn redis.call('set','a','1')",
            "ERR Write commands are not allowed from read-only scripts.",
            2,
        ),
        (
            "return cjson.encode({[1]=1,[100]=3})",
            "ERR user_script:1: Cannot serialise table: excessively sparse array",
            1,
        ),
        (
            "return cjson.decode('{')",
            "ERR user_script:1: Expected object key string but found T_END at character 2",
            1,
        ),
    ] {
        assert_eq!(db.eval(script), format!("-{text}{}", at(script, line)), "{script}");
    }
    for (script, reply) in [
        ("return redis.pcall('get')", "-ERR Wrong number of args calling Redis command from script"),
        ("return redis.pcall('incr','a')", "-ERR value is not an integer or out of range"),
        (
            "return 1 +",
            "-ERR Error compiling script (new function): user_script:1: unexpected symbol near '<eof>'",
        ),
        ("#!lua name=x\nreturn 1", "-ERR Unknown lua shebang option: name=x"),
        ("#!python\nreturn 1", "-ERR Unexpected engine in script shebang: #!python"),
        (
            "local ok, e = pcall(redis.call,'incr','a') return {type(e), e}",
            "[string, ERR value is not an integer or out of range]",
        ),
        ("local ok, e = pcall(error, {err='x y'}) return e", "x y"),
        ("return {xpcall(function() error('a', 0) end, function(e) return e .. 'b' end)}", "[nil, ab]"),
        ("return {pcall(function(...) return ... end, 1, 2)}", "[1, 1, 2]"),
    ] {
        assert_eq!(db.eval(script), reply, "{script}");
    }
}

#[test]
fn arguments_are_checked_before_anything_is_sequenced() {
    let mut db = Database::new();
    for (words, reply) in [
        (&["EVAL", "return 1", "x"][..], "-ERR value is not an integer or out of range"),
        (&["EVAL", "return 1", "-1"], "-ERR Number of keys can't be negative"),
        (&["EVAL", "return 1", "2", "a"], "-ERR Number of keys can't be greater than number of args"),
        (&["EVALSHA", "abc", "0"], "-NOSCRIPT No matching script. Please use EVAL."),
        (&["FCALL", "f", "x"], "-ERR Function not found"),
        (&["FCALL_RO", "f", "2", "a"], "-ERR Function not found"),
        (&["FCALL", "f", "0"], "-ERR Function not found"),
        (
            &["EVAL_RO", "return redis.pcall('set',KEYS[1],'b')", "1", "a"],
            "-ERR Write commands are not allowed from read-only scripts.",
        ),
    ] {
        assert_eq!(db.run(words), reply, "{words:?}");
    }
    let refused = |words: &[&str]| {
        let words: Vec<&[u8]> = words.iter().map(|w| w.as_bytes()).collect();
        let (name, rest) = words.split_first().unwrap();
        let result = if *name == b"SCRIPT" { script_subcommand(rest) } else { function_subcommand(rest) };
        result.unwrap_err().to_string()
    };
    assert_eq!(refused(&["SCRIPT", "LOAD"]), "ERR wrong number of arguments for 'script|load' command");
    assert_eq!(refused(&["SCRIPT", "FLUSH", "X"]), "ERR SCRIPT FLUSH only support SYNC|ASYNC option");
    assert_eq!(refused(&["SCRIPT", "FOO"]), "ERR unknown subcommand 'FOO'. Try SCRIPT HELP.");
    assert_eq!(refused(&["FUNCTION", "FLUSH", "x"]), "ERR FUNCTION FLUSH only supports SYNC|ASYNC option");
    assert_eq!(
        refused(&["FUNCTION", "FLUSH", "a", "b"]),
        "ERR unknown subcommand or wrong number of arguments for 'FLUSH'. Try FUNCTION HELP."
    );
    assert_eq!(refused(&["FUNCTION"]), "ERR wrong number of arguments for 'function' command");
}

#[test]
fn a_key_that_was_not_declared_is_refused_before_it_is_touched() {
    let mut db = Database::new();
    db.run(&["SET", "secret", "1"]);
    let before = db.digest();
    for script in [
        "return redis.call('get','secret')",
        "return redis.call('set','secret','2')",
        "return redis.call('mset','a','1','secret','2')",
        "redis.call('set','a','1') return redis.call('del','a','secret')",
    ] {
        let error = db.run(&["EVAL_RO", script, "0"]);
        assert!(error.starts_with('-'), "{script}: {error}");
        let error = db.error(script);
        assert!(error.starts_with("-ERR Script attempted to access a non declared key"), "{script}: {error}");
    }
    // The script's own record is all that is new.
    db.run(&["SCRIPT", "FLUSH"]);
    assert_eq!(db.digest(), before);
}

#[test]
fn a_script_that_fails_has_no_effect() {
    let mut db = Database::new();
    db.run(&["SET", "a", "1"]);
    db.run(&["HSET", "b", "f", "1"]);
    let script = "redis.call('incr','a') redis.call('hset','b','f','2','g','3') redis.call('set','c','new') \
                  redis.call('del','a') redis.call('incr','b')";
    db.run(&["SCRIPT", "LOAD", script]);
    let before = db.digest();
    assert_eq!(db.error(script), "-WRONGTYPE Operation against a key holding the wrong kind of value");
    assert_eq!(db.digest(), before);
    // A script that catches the error goes on, and keeps what it did.
    let caught = "redis.call('incr','a') pcall(redis.call,'incr','b') redis.pcall('incr','b') return redis.call('get','a')";
    assert_eq!(db.eval(caught), "2");
    assert_eq!(db.run(&["GET", "a"]), "2");
    // An error that is returned is a reply.
    assert_eq!(db.eval("redis.call('incr','a') return {err='ERR no'}"), "-ERR no");
    assert_eq!(db.run(&["GET", "a"]), "3");
}

#[test]
fn the_other_commands_of_a_transaction_stand() {
    let mut db = Database::new();
    let calls: Vec<(ProcedureId, Vec<u8>)> = [
        &["SET", "a", "1"][..],
        &["EVAL", "redis.call('set','a','2') redis.call('set','b','2') error('no')", "2", "a", "b"],
        &["INCR", "a"],
        &["EVAL", "return redis.call('incr', KEYS[1])", "1", "a"],
    ]
    .iter()
    .map(|words| db.encode(&words.iter().map(|w| w.as_bytes()).collect::<Vec<_>>()).unwrap())
    .collect();
    let mut buffer = Vec::new();
    system::multi_args(
        std::iter::empty(),
        calls.iter().map(|(id, args)| (*id, Db(0), &**args)),
        &mut ArgsBuilder::new(&mut buffer),
    );
    let reply = db.submit(system::MULTI, &buffer);
    assert!(reply.starts_with("[+OK, -ERR user_script:1: no script: "), "{reply}");
    assert!(reply.ends_with(", 2, 3]"), "{reply}");
    assert_eq!(db.run(&["GET", "b"]), "nil");
}

#[test]
fn scripts_are_kept_by_their_sha() {
    let mut db = Database::new();
    let body = "return ARGV[1]";
    let sha = String::from_utf8(sha1_hex(body.as_bytes()).to_vec()).unwrap();
    assert_eq!(db.run(&["EVALSHA", &sha, "0", "x"]), "-NOSCRIPT No matching script. Please use EVAL.");
    assert_eq!(db.run(&["EVAL_RO", body, "0", "x"]), "x");
    assert_eq!(db.run(&["SCRIPT", "EXISTS", &sha, "abc"]), "[0, 0]", "a read changes nothing");
    assert_eq!(db.run(&["EVAL", body, "0", "x"]), "x");
    assert_eq!(db.run(&["SCRIPT", "EXISTS", &sha.to_uppercase(), "abc"]), "[1, 0]");
    assert_eq!(db.run(&["EVALSHA", &sha.to_uppercase(), "0", "y"]), "y");
    assert_eq!(db.run(&["EVALSHA_RO", &sha, "0", "z"]), "z");
    // It is a record: it survives FLUSHALL, and a restart replays it.
    db.run(&["FLUSHALL"]);
    assert_eq!(db.run(&["EVALSHA", &sha, "0", "y"]), "y");
    assert_eq!(db.executor.records().filter(|(db, ..)| *db == Db::SCRIPTS).count(), 1);
    assert_eq!(db.run(&["SCRIPT", "FLUSH"]), "+OK");
    assert_eq!(db.run(&["EVALSHA", &sha, "0", "x"]), "-NOSCRIPT No matching script. Please use EVAL.");
    assert_eq!(db.run(&["SCRIPT", "LOAD", body]), sha);
    assert_eq!(db.run(&["EVALSHA", &sha, "0", "x"]), "x");
    // A script that does not compile is not kept.
    assert!(db.run(&["EVAL", "return +", "0"]).starts_with("-ERR Error compiling script"));
    assert!(db.run(&["SCRIPT", "LOAD", "return +"]).starts_with("-ERR Error compiling script"));
    let broken = String::from_utf8(sha1_hex(b"return +").to_vec()).unwrap();
    assert_eq!(db.run(&["SCRIPT", "EXISTS", &broken]), "[0]");
}

#[test]
fn reads_are_planned_as_reads() {
    let db = Database::new();
    let read_only = |words: &[&str]| {
        let (id, encoded) = db.encode(&words.iter().map(|w| w.as_bytes()).collect::<Vec<_>>()).unwrap();
        let mut chunk = Chunk::new(GatewayId(0), ordain_model::ChunkNo(0));
        let words = Args::parse(&encoded).unwrap();
        let push = |b: &mut ArgsBuilder<'_>| {
            words.iter().for_each(|w| {
                b.push(w.bytes);
            })
        };
        let txn: &chunk::Txn = chunk.push(&db.registry, Call::new(id, Db(0)), push).unwrap();
        assert!(!txn.abortable);
        txn.read_only
    };
    assert!(read_only(&["EVAL_RO", "return 1", "2", "a", "b"]));
    assert!(read_only(&["EVALSHA_RO", "abc", "2", "a", "b"]));
    assert!(read_only(&["FCALL_RO", "f", "2", "a", "b"]));
    assert!(!read_only(&["EVAL", "return 1", "1", "a"]));
    assert!(!read_only(&["FCALL", "f", "1", "a"]));
}

#[test]
fn a_key_declared_twice_is_one_record() {
    let mut db = Database::new();
    let script = "redis.call('incr', KEYS[1]) return redis.call('incr', KEYS[2])";
    assert_eq!(db.run(&["EVAL", script, "2", "a", "a"]), "2");
    let many: Vec<String> = (0..50).map(|i| format!("k{}", i % 20)).collect();
    let mut words = vec!["EVAL", "for _, k in ipairs(KEYS) do redis.call('incr', k) end return #KEYS", "50"];
    words.extend(many.iter().map(String::as_str));
    assert_eq!(db.run(&words), "50");
    assert_eq!(db.run(&["MGET", "k0", "k10", "k19"]), "[3, 2, 2]");
}

#[test]
fn a_sha_is_encoded_in_lower_case() {
    let (id, encoded) = Database::new().encode(&[b"EVALSHA", b"ABC", b"1", b"k"]).unwrap();
    assert_eq!(id, ids::EVALSHA);
    assert_eq!(encoded, args::encode(&["abc", "1", "k"]));
}
