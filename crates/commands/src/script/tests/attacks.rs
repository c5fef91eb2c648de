//! Scripts that were sent to hurt a node, and inputs that once were answered wrongly. Budgets are scaled down in tests.

use ordain_lua::{Body, Machine, Value};

use super::super::host::{CLASSES, Class, ROWS, class_of};
use super::{Database, over_budget, over_load_budget};
use crate::table::{Action, all};

const OUT_OF_MEMORY: &str = "-ERR script stopped: it allocated more than 128 MiB";

/// Each ends by one of its budgets, and leaves nothing.
#[test]
fn attacks_end_within_their_budget() {
    let mut db = Database::new();
    db.run(&["SET", "a", "0"]);
    db.run(&["SET", "long", &"x".repeat(1 << 20)]);
    db.run(&["HSET", "h", "f", &"x".repeat(1000)]);
    let fields: Vec<String> = (0..2000).map(|i| format!("f{i}")).collect();
    let mut words = vec!["HSET", "h"];
    words.extend(fields.iter().flat_map(|f| [f.as_str(), "1"]));
    db.run(&words);
    let before = db.digest();
    for script in [
        "local s=string.rep('a',10000000) for i=1,5000 do s:reverse() end return 1",
        "local s=string.rep('a',10000000) for i=1,5000 do s:upper() end return 1",
        "local t={} for i=1,1e5 do t[i]=i end for i=1,2e7 do table.maxn(t) end",
        "local t={} for i=1,7000 do t[i]=i end for i=1,2e7 do unpack(t) end",
        "local t={} for i=1,7000 do t[i]=i end for i=1,2e7 do table.concat(t) end",
        "local s=('1'):rep(1e6) for i=1,2e7 do tonumber(s) end",
        "local t={} for i=1,1e4 do t['k'..i]=1 end for i=1,1e4 do t['k'..i]=nil end for i=1,2e7 do next(t) end",
        "for i=1,100 do ('x'):rep(1e4):find('['..('a'):rep(1e4)..']') end",
        "local a,b=('x'):rep(2e7),('x'):rep(2e7)..'y' for i=1,2e7 do local c=a<b end",
        "local s=('x'):rep(1e6) for i=1,2e7 do redis.sha1hex(s) end",
        "local m={} for i=1,99 do m=setmetatable({},{__index=m}) end for i=1,2e7 do local x=m.y end",
        "while true do pcall(redis.call,'x') end",
        "while true do pcall(redis.call) end",
        "while true do redis.pcall('get') end",
        "while true do pcall(redis.call,'keys','*') end",
        "for i=1,1e6 do redis.call('SETRANGE',KEYS[1],15999999,'x') end",
        "for i=1,1e6 do redis.call('APPEND',KEYS[1],'x') end",
        "for i=1,1e6 do redis.call('SET',KEYS[2],redis.call('GET',KEYS[1])) end",
        "for i=1,1e6 do redis.call('COPY',KEYS[1],KEYS[2],'REPLACE') end",
        "for i=1,1e6 do redis.call('HSCAN',KEYS[3],0,'MATCH','nothing','COUNT',10000) end",
        "for i=1,1e6 do redis.call('HRANDFIELD',KEYS[3],-100) end",
        "for i=1,1e6 do redis.call('HGETALL',KEYS[3]) end",
        "for i=1,1e6 do redis.call('HSET',KEYS[3],'f','1') end",
        "for i=1,1e6 do redis.call('STRLEN',KEYS[1]) end",
        "local s=('x'):rep(3e7) local t={} for i=1,7000 do t[i]=s end return redis.call(unpack(t))",
        "local s=('x'):rep(1e6) local t={} for i=1,1e5 do t[i]={[s]=1} end return cjson.encode(t)",
        "local s=('x'):rep(1e6) local t={} for i=1,1e5 do t[i]={ok=s} end return t",
        "local s=('x'):rep(1e6) local t={} for i=1,1e5 do t[i]={err=s} end return t",
        "local s=('x'):rep(1e6) local t={} for i=1,1e5 do t[i]={map={[s]=1}} end return t",
        "local s=('x'):rep(1e6) local t={} for i=1,1e5 do t[i]={set={[s]=1}} end return t",
        "local s=('x'):rep(1e6) local t={} for i=1,1e5 do t[i]={big_number=s} end return t",
        "local t={} for i=1,60 do t={t,t} end return cjson.encode(t)",
        "local t={} for i=1,60 do t={t,t} end return cmsgpack.pack(t,t,t,t,t,t,t,t,t,t,t,t,t,t,t,t,t,t,t,t,t,t,t,t,t,t,t,t,t,t,t,t,t,t)",
        "local s=('f()'):rep(1e5) while true do loadstring(s) end",
        "local function f(...) return f(1, ...) end f()",
        "local s='' while true do s=s..tostring(#s) end",
    ] {
        let reply = db.run(&["EVAL", script, "4", "long", "b", "h", "a"]);
        let ended = reply == over_budget() || reply == OUT_OF_MEMORY || reply.contains("stack overflow");
        assert!(ended, "{script}: {}", &reply[..reply.len().min(200)]);
        db.run(&["SCRIPT", "FLUSH"]);
        assert_eq!(db.digest(), before, "{script}");
    }
}

/// A script that writes into a long string again and again does the work, and holds the memory, of what it writes.
#[test]
fn what_is_written_into_a_long_string_costs_what_is_written() {
    let mut db = Database::new();
    let long = "x".repeat(15 << 20);
    db.run(&["SET", "long", &long]);
    let before = db.digest();
    // Fifteen MiB are 250,000 units to copy, and the budget of a test is 4 million.
    let append = "for i=1,5000 do redis.call('APPEND',KEYS[1],'y') end";
    let over = "for i=1,5000 do redis.call('SETRANGE',KEYS[1],i,'y') end";
    let fails = |script: &str| format!("{script} error('no')");
    for script in [append, over] {
        let reply = db.run(&["EVAL", &fails(script), "1", "long"]);
        assert!(reply.contains("no script:"), "{script}: {reply}");
        db.run(&["SCRIPT", "FLUSH"]);
        assert_eq!(db.digest(), before, "{script}");
    }
    let ends = format!("{append} {over} return redis.call('STRLEN',KEYS[1])");
    assert_eq!(db.run(&["EVAL", &ends, "1", "long"]), ((15 << 20) + 5000).to_string());
    assert_eq!(db.run(&["GETRANGE", "long", "0", "1"]), "xy");
    assert_eq!(db.run(&["GETRANGE", "long", "-5001", "-5000"]), "xy");
}

/// A field that is changed again and again is undone by one image of its record at most.
#[test]
fn changes_of_one_field_are_undone_by_the_memory_of_one() {
    let mut db = Database::new();
    let large = "v".repeat(20_000);
    db.run(&["HSET", "h", "a", "1", "f", "0", "large", &large]);
    let before = db.run(&["HGETALL", "h"]);
    // Each change replaces 20 kB: noted one by one they would be more than the script has left of its 128 MiB.
    let script = "local held, v = {}, redis.call('HGET', KEYS[1], 'large') \
                  for i=1,5 do held[i] = tostring(i):rep(17 * 1024 * 1024) end \
                  for i=1,2500 do redis.call('HSET', KEYS[1], 'large', v) end return 1";
    assert_eq!(db.run(&["EVAL", script, "1", "h"]), "1");
    let many = "for i=1,8000 do redis.call('HINCRBY', KEYS[1], 'f', 1) end";
    assert_eq!(
        db.run(&["EVAL", &format!("{many} return redis.call('HGET', KEYS[1], 'f')"), "1", "h"]),
        "8000"
    );
    db.run(&["HSET", "h", "f", "0"]);
    let reply = db.run(&["EVAL", &format!("{many} redis.call('HDEL', KEYS[1], 'a') error('no')"), "1", "h"]);
    assert!(reply.contains("no script:"), "{reply}");
    assert_eq!(db.run(&["HGETALL", "h"]), before, "in the order of before");
}

/// A command whose reply does not fit into what the script has left is ended while it is written.
#[test]
fn a_reply_is_held_to_what_the_script_has_left() {
    let mut db = Database::new();
    let value = "v".repeat(1 << 20);
    let mut words = vec!["HSET".to_owned(), "h".to_owned()];
    words.extend((0..15).flat_map(|i| [format!("f{i}"), value.clone()]));
    db.run(&words.iter().map(String::as_str).collect::<Vec<_>>());
    db.run(&["SET", "s", &value]);
    // Fifteen MiB of reply: the command's answer, the reply that is made of it, and the words in the script.
    let all = "return #redis.call('HGETALL', KEYS[1])";
    assert_eq!(db.run(&["EVAL", all, "1", "h"]), "30");
    for call in [
        "redis.call('HGETALL', KEYS[1])",
        "redis.call('HVALS', KEYS[1])",
        "redis.call('HRANDFIELD', KEYS[1], -1000, 'WITHVALUES')",
        "redis.call('HSCAN', KEYS[1], 0)",
        "redis.call('HMGET', KEYS[1], unpack(fields))",
        "redis.call('MGET', unpack(keys))",
        "redis.call('COPY', KEYS[1], KEYS[3])",
        "redis.pcall('HGETALL', KEYS[1])",
    ] {
        let script = format!(
            "local fields, keys = {{}}, {{}} for i=1,100 do fields[i] = 'f1' keys[i] = KEYS[2] end \
             local held = {{}} for i=1,6 do held[i] = tostring(i):rep(17 * 1024 * 1024) end \
             local got = {call} return 1"
        );
        assert_eq!(db.run(&["EVAL", &script, "3", "h", "s", "t"]), OUT_OF_MEMORY, "{call}");
        assert_eq!(db.run(&["EXISTS", "t"]), "0");
    }
}

/// Syntax that once reached past its bounds, or could.
#[test]
fn sources_of_any_shape_are_answered() {
    let mut db = Database::new();
    let deep = |open: &str, middle: &str, close: &str, n: usize| {
        format!("return {}{middle}{}", open.repeat(n), close.repeat(n))
    };
    let many = |piece: &str, n: usize| piece.repeat(n);
    for script in [
        deep("(", "1", ")", 100_000),
        deep("{", "", "}", 100_000),
        deep("f(", "1", ")", 100_000),
        deep("function() return ", "1", " end", 100_000),
        format!("return {}1", many("-", 100_000)),
        format!("return {}1", many("not ", 100_000)),
        format!("return {}'x'", many("'x'..", 100_000)),
        format!("return 1{}", many("^1", 100_000)),
        format!("return a{}", many(".a", 100_000)),
        format!("return a{}", many("()", 100_000)),
        many("do ", 100_000),
        many("while true do ", 100_000),
        format!("if x then {} end", many("elseif x then ", 10_000)),
        many("local a ", 10_000),
        format!("local {}a = 1", many("a, ", 10_000)),
        format!("return [{}[", many("=", 100_000)),
        format!("--[{}[", many("=", 100_000)),
        format!("return {{{}}}", many("1,", 100_000)),
        format!("f({})", many("1,", 1_000)),
        format!("return function({}...) end", many("a,", 300)),
        "return '\\999'".into(),
        "\u{1b}Lua".into(),
        "\0".into(),
        "#".into(),
    ] {
        let reply = db.run(&["EVAL", &script, "0"]);
        assert!(reply.starts_with('-') || !reply.is_empty(), "{}", &script[..script.len().min(80)]);
    }
    // A chain to the left nests no deeper than a short one.
    assert_eq!(db.eval(&format!("return 1{}", many("+1", 3_000))), "3001");
    assert_eq!(db.eval(&format!("return nil{} or 7", many(" or nil", 3_000))), "7");
    assert_eq!(db.eval(&format!("if nil{} then return 1 end return 2", many(" or nil", 3_000))), "2");
}

/// Inputs of the list of failures, with the answers that Redis gives.
#[test]
fn answers_are_those_of_redis() {
    let mut db = Database::new();
    for (script, reply) in [
        ("return redis.error_reply('oneword')", "-ERR oneword"),
        ("return redis.error_reply('')", "-ERR "),
        ("return redis.error_reply('-CODE text')", "-CODE text"),
        ("return {verbatim_string={format='txt',string='x'}}", "=x"),
        ("return {big_number='12345678901234567890'}", "(12345678901234567890"),
        ("return {pcall(function() error({err='x'}) end)}", "[nil, x]"),
        ("return {double=3.7}", "~3.7"),
        ("return {err='a\\0b'}", "-a"),
        ("return {ok='a\\0b'}", "+a"),
        ("return {ok='a\\r\\nb'}", "+a  b"),
        (
            "local ok, e = pcall(redis.call, 'get') return e",
            "Wrong number of args calling Redis command from script",
        ),
        ("local ok, e = pcall(redis.sha1hex) return e", "ERR wrong number of arguments"),
        ("return cjson.encode_keep_buffer(true)", "1"),
        ("return tostring(cjson.encode_keep_buffer())", "true"),
        ("return cjson.encode_sparse_array(true) and cjson.encode({[1]=1,[100]=2})", "{\"1\":1,\"100\":2}"),
        ("return {cjson.encode_sparse_array(nil, 5, 6)}", "[nil, 5, 6]"),
        (
            "cjson.encode_max_depth(2) return {pcall(cjson.encode, {{{}}})}",
            "[nil, Cannot serialise, excessive nesting (3)]",
        ),
        (
            "cjson.decode_max_depth(1) return {pcall(cjson.decode, '[[1]]')}",
            "[nil, Found too many nested data structures (2) at character 2]",
        ),
        ("cjson.encode_number_precision(3) return cjson.encode(1.23456)", "1.23"),
        ("cjson.encode_invalid_numbers('null') return cjson.encode({0/0})", "[null]"),
        ("cjson.decode_invalid_numbers(false) return (pcall(cjson.decode, '[0x10]'))", "nil"),
        (
            "return {pcall(cjson.encode_number_precision, 15)}",
            "[nil, bad argument #1 to 'encode_number_precision' (expected integer between 1 and 14)]",
        ),
        ("return cjson.new().encode({1})", "[1]"),
        ("return cmsgpack.unpack(cmsgpack.pack({1, 'x', {a = true}}))", "[1, x, []]"),
        (
            "local t = cmsgpack.unpack(cmsgpack.pack({a = 1.5, b = -3, c = 2^40})) return {tostring(t.a), t.b, t.c}",
            "[1.5, -3, 1099511627776]",
        ),
        ("return {cmsgpack.unpack_one('\\1\\2\\3')}", "[1, 1]"),
        ("return {cmsgpack.unpack_limit('\\1\\2\\3', 2, 0)}", "[2, 1, 2]"),
        ("return {pcall(cmsgpack.unpack, '\\193')}", "[nil, Bad data format in input.]"),
        ("return {pcall(cmsgpack.unpack, '\\219\\255\\255\\255\\255')}", "[nil, Missing bytes in input.]"),
        ("return {struct.unpack('>I2bs', struct.pack('>I2bs', 258, -3, 'abc'))}", "[258, -3, abc, 8]"),
        ("return struct.size('!8bd')", "16"),
        ("return {struct.unpack('Bc0', struct.pack('Bc0', 3, 'abc'))}", "[abc, 5]"),
        ("return {pcall(struct.unpack, 'i4', 'abc')}", "[nil, data string too short]"),
        ("return (pcall(struct.pack, 'i2147483648', 1))", "nil"),
        ("return (pcall(struct.unpack, 'c0', ('x'):rep(9), 2147483647))", "nil"),
        ("return bit.tohex(2147483647, -2147483648)", "7FFFFFFF"),
        ("return redis.acl_check_cmd('set', 'a', 'b')", "1"),
        (
            "return {pcall(redis.acl_check_cmd, 'nope')}",
            "[nil, ERR Invalid command passed to redis.acl_check_cmd()]",
        ),
        ("return tostring(collectgarbage('collect'))", "0"),
    ] {
        let got = db.eval(script);
        let reply =
            if reply.starts_with("Wrong number") { format!("ERR {reply}") } else { reply.to_string() };
        assert_eq!(got, reply, "{script}");
    }
    // Bytes that are not UTF-8 stay what they are.
    let raw = db.run(&["EVAL", "return #redis.call('echo', '\\233')", "0"]);
    assert_eq!(raw, "1");
    // A script that may write is refused where none may.
    let refused = "-ERR Can not execute a script with write flag using *_ro command.";
    assert_eq!(db.run(&["EVAL_RO", "#!lua\nreturn 1", "0"]), refused);
    assert_eq!(db.run(&["EVAL_RO", "#!lua flags=no-writes\nreturn 1", "0"]), "1");
    assert_eq!(db.run(&["EVAL_RO", "return 1", "0"]), "1");
    let sha = String::from_utf8(super::sha1_hex(b"#!lua\nreturn 1").to_vec()).unwrap();
    db.run(&["SCRIPT", "LOAD", "#!lua\nreturn 1"]);
    assert_eq!(db.run(&["EVALSHA_RO", &sha, "0"]), refused);
}

#[test]
fn a_library_is_loaded_in_a_world_of_its_own() {
    let mut db = Database::new();
    for (body, missing) in [
        ("math.random()", "math"),
        ("redis.setresp(3)", "setresp"),
        ("redis.set_repl(redis.REPL_ALL)", "set_repl"),
        ("redis.call('get','x')", "call"),
    ] {
        let code = format!("#!lua name=l\n{body} redis.register_function('f', function() end)");
        let reply = db.run(&["FUNCTION", "LOAD", &code]);
        assert!(reply.contains(&format!("nonexistent global variable '{missing}'")), "{body}: {reply}");
    }
    let code =
        "#!lua name=l\nredis.register_function{function_name='f', callback=function() end, description={}}";
    assert!(
        db.run(&["FUNCTION", "LOAD", code]).starts_with("-ERR Error registering functions: ERR description")
    );
    // What it registers may use all of it.
    let code = "#!lua name=l\nredis.log(redis.LOG_NOTICE, 'x') \
                redis.register_function('f', function(keys) math.random() return redis.call('get', keys[1]) end)";
    assert_eq!(db.run(&["FUNCTION", "LOAD", code]), "l");
    db.run(&["SET", "k", "v"]);
    assert_eq!(db.run(&["FCALL", "f", "1", "k"]), "v");
}

/// The functions of the host stand in its table, each with a cost, and a loop of each ends.
#[test]
fn every_function_and_command_has_a_cost() {
    let mut db = Database::new();
    let calls = [
        ("redis.call", "redis.call('get', KEYS[1])"),
        ("redis.pcall", "redis.pcall('nope')"),
        ("redis.error_reply", "redis.error_reply('x')"),
        ("redis.status_reply", "redis.status_reply('x')"),
        ("redis.sha1hex", "redis.sha1hex('x')"),
        ("redis.log", "redis.log(1, 'x')"),
        ("redis.setresp", "redis.setresp(3)"),
        ("redis.set_repl", "redis.set_repl(1)"),
        ("redis.replicate_commands", "redis.replicate_commands()"),
        ("redis.acl_check_cmd", "redis.acl_check_cmd('get', 'a')"),
        ("redis.breakpoint", "redis.breakpoint()"),
        ("redis.debug", "redis.debug('x')"),
    ];
    for (name, call) in calls {
        assert!(ROWS.iter().any(|row| row.name == name), "{name}");
        assert_eq!(db.eval(&format!("while true do {call} end")), over_budget(), "{name}");
    }
    let register =
        "#!lua name=l\nlocal i = 0 while true do i = i + 1 redis.register_function('f' .. i, type) end";
    assert_eq!(db.run(&["FUNCTION", "LOAD", register]), over_load_budget());
    // The compiler ends at the budget: it does not come to the mistake at the end of a long source.
    let long = format!("#!lua name=l\n{} (", "do local function f(a) return a + 1 end end ".repeat(100_000));
    assert_eq!(db.run(&["FUNCTION", "LOAD", &long]), over_load_budget());
    for row in ROWS {
        assert!(row.cost.base > 0 && row.cost.bytes_per_unit > 0, "{}", row.name);
        assert!(
            row.name == "redis.register_function" || calls.iter().any(|(name, _)| *name == row.name),
            "{}",
            row.name
        );
    }
    for (i, (class, cost)) in CLASSES.iter().enumerate() {
        assert_eq!(*class as usize, i);
        assert!(cost.base > 0);
    }
    // A command of records is of a class that pays for them.
    for command in all() {
        let is_procedure = matches!(command.action, Action::Procedure { .. });
        assert_eq!(class_of(command) == Class::None, !is_procedure, "{}", command.name);
    }
    // A walk of what a script sees finds rows alone.
    let machine = Machine::new(ROWS);
    let mut left = vec![machine.globals()];
    let mut seen = left.clone();
    while let Some(table) = left.pop() {
        for (_, value) in machine.heap.pairs(table) {
            match value {
                Value::Table(table) if !seen.contains(&table) => {
                    seen.push(table);
                    left.push(table);
                }
                Value::Native(native) => {
                    let row = machine.row(native).expect("a row");
                    assert!(row.cost.base > 0, "{}", row.name);
                    let is_hosts = matches!(row.body, Body::Host(_));
                    assert_eq!(is_hosts, row.name.starts_with("redis."), "{}", row.name);
                }
                Value::Closure(_) => panic!("a function written in Lua is in the base"),
                _ => {}
            }
        }
    }
}
