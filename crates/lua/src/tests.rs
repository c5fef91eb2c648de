//! Programs through the machine, and through the C interpreter where both must agree.

use super::*;

const WORK: i64 = 4_000_000;
const MEMORY: usize = 32 << 20;

/// Runs a script and shows what it gives, or its error.
fn run_in(machine: &mut Machine, script: &str) -> String {
    machine.begin(Budget::new(WORK, MEMORY), 1);
    let program = match compile(script.as_bytes(), "user_script", MEMORY, WORK as u64) {
        Ok(program) => program,
        Err(CompileError::Syntax(text)) => return format!("error: {}", String::from_utf8_lossy(&text)),
        Err(CompileError::Dead(death)) => return format!("dead: {death:?}"),
    };
    let ran = machine.load(&program).and_then(|main| machine.run(&mut NoHost, main, &[]));
    let values = match ran {
        Ok(values) => values,
        Err(Fault::Dead) => return format!("dead: {:?}", machine.heap.budget.death().unwrap()),
        Err(Fault::Error(value)) => {
            return format!("error: {}", show(machine, value));
        }
        Err(Fault::Text(text)) => return format!("error: {}", String::from_utf8_lossy(&text)),
    };
    let shown: Vec<String> = values.into_iter().map(|value| show(machine, value)).collect();
    shown.join(" ")
}

fn show(machine: &Machine, value: Value) -> String {
    match value {
        Value::String(s) => String::from_utf8_lossy(machine.heap.bytes(s)).into_owned(),
        Value::Number(x) => number::format_g(x, 14),
        Value::Bool(b) => b.to_string(),
        other => other.type_name().into(),
    }
}

fn machine() -> Machine {
    let mut machine = Machine::new(&[]);
    machine.seal();
    machine
}

fn run(script: &str) -> String {
    run_in(&mut machine(), script)
}

fn by_c(lua: &mlua::Lua, script: &str) -> String {
    let show = |value: &mlua::Value| match value {
        mlua::Value::String(s) => s.to_string_lossy(),
        mlua::Value::Integer(i) => number::format_g(*i as f64, 14),
        mlua::Value::Number(x) => number::format_g(*x, 14),
        mlua::Value::Boolean(b) => b.to_string(),
        other => other.type_name().into(),
    };
    let chunk = lua.load(script).set_name("@user_script").into_function();
    match chunk.and_then(|f| f.call::<mlua::MultiValue>(())) {
        Ok(values) => values.iter().map(show).collect::<Vec<_>>().join(" "),
        Err(mlua::Error::SyntaxError { message, .. }) => format!("error: {message}"),
        Err(mlua::Error::RuntimeError(text)) => {
            format!("error: {}", text.split("\nstack traceback").next().unwrap())
        }
        Err(error) => format!("error: {error}"),
    }
}

/// Scripts whose outcome is that of the C interpreter, errors included.
const AGREED: &[&str] = &[
    "return 1, 'a', true, nil, {}",
    "return 1 + 2 * 3 - 4 / 2 ^ 2 % 3, -2 ^ 2, not nil == true, 2 ^ 3 ^ 2",
    "return 'a' .. 'b' .. 1 .. 2.5, #'abc', 10 .. ''",
    "return 7 % 3, -7 % 3, 7 % -3, 5.5 % 2, 1 / 0, -1 / 0",
    "return '10' + 5, '0x10' * 2, ' 3 ' - 1, -'2'",
    "return 1 < 2, 'a' < 'b', 'Z' < 'a', 1 == '1', 'a' == 'a', 1 ~= 1",
    "return nil and 1, false or 2, 1 and 2, nil or false, 1 or error('no')",
    "local a, b, c = 1 return a, b, c",
    "local a, b = (function() return 1, 2, 3 end)() return a, b",
    "local t = {1, 2, 3, x = 4, [10] = 5} return #t, t.x, t[10], t[2], t.y",
    "local t = {(function() return 1, 2, 3 end)()} return #t",
    "local t = {(function() return 1, 2, 3 end)(), 5} return #t, t[1], t[2]",
    "local t = {n = 1, 2, 3, nil, 5} return #t, t[4]",
    "local t = {} for i = 1, 10 do t[i] = i * i end return #t, t[5], t[11]",
    "local s = 0 for i = 10, 1, -3 do s = s + i end return s",
    "local s = 0 for i = 1, 3 do for j = 1, 3 do if j == 2 then break end s = s + i * j end end return s",
    "local s = 0 local i = 0 while true do i = i + 1 if i > 5 then break end s = s + i end return s",
    "local i = 0 repeat local j = i i = i + 1 until j >= 3 return i",
    "local f = {} for i = 1, 3 do f[i] = function() i = i + 1 return i end end return f[1](), f[1](), f[2]()",
    "local f = {} local i = 0 repeat local j = i f[#f + 1] = function() j = j + 1 return j end i = i + 1 until j >= 2 return f[1](), f[1](), f[2](), f[3]()",
    "local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end return fib(15)",
    "local function f(...) return select('#', ...), ... end return f(1, nil, 3)",
    "local function f(a, ...) local b, c = ... return a, b, c end return f(1, 2)",
    "local function f(...) local t = {...} return #t, t[2] end return f(1, 2, 3)",
    "local function f(a, ...) return arg.n, arg[1] end return f(1, 2, 3)",
    "local function f(n) if n == 0 then return 'done' end return f(n - 1) end return f(100000)",
    "local t = setmetatable({}, {__index = function(t, k) return k .. '!' end}) return t.x, t[1]",
    "local t = setmetatable({}, {__index = {a = 1}}) return t.a, t.b, rawget(t, 'a')",
    "local log = {} local t = setmetatable({}, {__newindex = function(t, k, v) rawset(t, k, v * 2) end}) t.a = 4 return t.a",
    "local m = {} m.__add = function(a, b) return 'add' end m.__concat = function(a, b) return 'cat' end m.__unm = function() return 'unm' end m.__call = function(self, x) return x end m.__eq = function() return true end m.__lt = function() return true end m.__le = function() return false end local a, b = setmetatable({}, m), setmetatable({}, m) return a + 1, 1 + a, a .. 'x', 'x' .. a, -a, a(5), a == b, a < b, a <= b",
    "local t = {} t.x, t.y = 1, 2 local i = 1 i, t[i] = i + 1, 20 return t.x, t.y, i, t[1]",
    "local a = {} local function f() return a end f().x = 5 return a.x",
    "local o = {n = 1} function o:add(k) self.n = self.n + k return self end function o.new() return 7 end return o:add(2):add(3).n, o.new()",
    "local x = 5 local y = x and x + 1 or 0 local z = not x return y, z",
    "local a = 1 a = a and a + 1 local b = 2 b = b == 2 return a, b",
    "local a, b = 1, 2 a, b = b, a return a, b",
    "local t = {1, 2} local a = 1 a = {a, a} return a[1], a[2]",
    "return pcall(error, 'x'), select(2, pcall(error, {1})), pcall(error)",
    "return pcall(function() error('msg') end)",
    "return pcall(function() error('msg', 0) end)",
    "return pcall(function() error(1.5) end)",
    "return pcall(function() error(1.5, 0) end)",
    "return pcall(loadstring('error(1)', '=\\233'))",
    "return loadstring('x \\233')",
    "return loadstring('\\127')",
    "return loadstring('x = 1 @')",
    "return loadstring('return $', '@\\233')",
    "return loadstring('!', '\\233 x')",
    "return pcall(function() error('msg', 2) end)",
    "local function f() error('msg', 2) end local function g() f() end return pcall(g)",
    "return pcall(function() local x = nil; x.y = 1 end)",
    "return pcall(function() local x; return x.y.z end)",
    "return pcall(function() local t = {} return t.x.y end)",
    "return pcall(function() local t = {} return t[1].y end)",
    "return pcall(function() local t = {} t.x.y = 1 end)",
    "return pcall(function() local t = {} t:nope() end)",
    "return pcall(function() local s = 'x' return s:nope() end)",
    "local up = nil return pcall(function() return up.x end)",
    "local up = nil return pcall(function() up() end)",
    "return pcall(function() return 1 + {} end)",
    "return pcall(function() local a = {} return a + 1 end)",
    "return pcall(function() local a = 'x' return a + 1 end)",
    "return pcall(function() return {} .. 'x' end)",
    "return pcall(function() local a = {} return 'x' .. a end)",
    "return pcall(function() return {} < {} end)",
    "return pcall(function() return 1 < 'x' end)",
    "return pcall(function() return #5 end)",
    "return pcall(function() local x = 5 return #x end)",
    "return pcall(function() local t = {} t[nil] = 1 end)",
    "return pcall(function() local t = {} t[0/0] = 1 end)",
    "return pcall(function() for i = 'a', 2 do end end)",
    "return pcall(function() for i = 1, {} do end end)",
    "return pcall(function() string.nofunction() end)",
    "return pcall(function() string.rep() end)",
    "return pcall(function() ('x'):rep({}) end)",
    "return pcall(function() string.rep('x', 'y') end)",
    "return pcall(next, {}, 1)",
    "return select(-1, 1, 2, 3), select(2, 'a', 'b', 'c')",
    "return tonumber('10'), tonumber('0x1f'), tonumber('  12  '), tonumber('1e2'), tonumber('z', 36), tonumber('ff', 16), tonumber('8', 8), tonumber(''), tonumber('1 2'), tonumber('.5'), tonumber('5.')",
    "return tostring(1), tostring(1.5), tostring(1e15), tostring(1e14), tostring(-0.0), tostring(1e100), tostring(123456789012), tostring(0.1), tostring(1/3), tostring(2^53), tostring(nil), tostring(true)",
    "return 100000000000000, 99999999999999, 123456789012345, 1e21, 2^63",
    "return type(nil), type(1), type('x'), type({}), type(print), type(type)",
    "return unpack({1, 2, 3}, 2), unpack({1, 2}, 1, 3)",
    "return unpack({}, 1, 0)",
    "return ('x'):rep(3), ('abc'):sub(2), ('abc'):sub(-2, -1), ('abc'):sub(2, 10), ('abc'):sub(0), ('abc'):upper(), ('ABC'):lower(), ('abc'):reverse(), ('abc'):len(), ('abc'):byte(1, -1)",
    "return string.char(72, 105), ('a,b,c'):find(',', 1, true), ('hello'):find('l+'), ('hello'):match('(h)(.)')",
    "return ('abc'):find('b', -1), ('abc'):find('', 4), ('abc'):find('', 5), ('aXb'):gsub('%u', '%0%0')",
    "return ('hello world'):gsub('o', {o = '0'}), ('abc'):gsub('', '-'), ('abc'):gsub('%w', '%%%0', 2)",
    "return ('abc'):gsub('b', function(c) return c:upper() end), ('abc'):gsub('b', function() return false end)",
    "return pcall(string.gsub, 'abc', 'b', '%2')",
    "return pcall(string.gsub, 'abc', 'b', function() return {} end)",
    "local r = {} for k, v in ('a=1, b=2'):gmatch('(%w+)=(%w+)') do r[#r + 1] = k .. v end return table.concat(r, ';')",
    "local r = {} for w in ('one two'):gmatch('%a+') do r[#r + 1] = w end return table.concat(r, ';')",
    "return string.format('%d %5d|%-5d|%05d|%+d|%x|%X|%#x|%o|%c|%s|%10s|%-10s|%.2s|%q', 1, 2, 3, 4, 5, 255, 255, 255, 8, 65, 'x', 'y', 'z', 'abc', 'a\"b\\n\\0')",
    "return string.format('%f %.2f %e %g %g %g %10.3f|%-10.1f|%+.0f', 1.5, 2.345, 12345.678, 0.0001, 1e20, 100000, 3.14159, 2.5, 0.5)",
    "return string.format('%d', 3.9), string.format('%d', -3.9), string.format('%s %s', 1, 1.5), string.format('%%')",
    "return pcall(string.format, '%y', 1)",
    "return string.format('%5.1f|%5s|%05.1f|%x', -2.25, 'ab', 2.25, 2^31), string.format('%.3d|%.0f|%i', 5, 2.5, 7)",
    "local t = {3, 1, 2} table.sort(t) return table.concat(t, ',')",
    "local t = {3, 1, 2} table.sort(t, function(a, b) return a > b end) return table.concat(t, ',')",
    "local t = {'b', 'a', 'C'} table.sort(t) return table.concat(t, ',')",
    "return pcall(table.sort, {1, 'x'})",
    "local t = {1, 2, 3} table.insert(t, 4) table.insert(t, 1, 0) local r = table.remove(t) local q = table.remove(t, 1) return #t, r, q, table.concat(t, ',')",
    "return table.remove({}), table.maxn({1, 2, [10] = 1}), table.getn({1, 2}), table.concat({1, 2, 3}, '-', 2, 3), table.concat({})",
    "return pcall(table.concat, {1, {}, 3})",
    "return pcall(table.insert, {}, 1, 2, 3)",
    "return math.floor(1.5), math.ceil(1.5), math.max(1, 3, 2), math.min(3, 1), math.abs(-1), math.fmod(7, 3), math.sqrt(16), math.huge, math.modf(3.5), math.frexp(8), math.ldexp(1, 3), math.pow(2, 3), math.pi",
    "return math.modf(-3.5), math.frexp(0), math.frexp(-0.3), math.exp(0), math.log(1), math.log10(100)",
    "local n = 0 for k, v in pairs({1, 2, 3, a = 1}) do n = n + 1 end return n",
    "local s = 0 for i, v in ipairs({1, 2, nil, 4}) do s = s + v end return s",
    "local t = {a = 1, b = 2, c = 3} for k in pairs(t) do t[k] = nil end return next(t)",
    "return next({}), next({5}), rawequal('a', 'a'), rawequal({}, {})",
    "return loadstring('return 1 + 1')(), loadstring('x y')",
    "return loadstring('return ...')(1, 2)",
    "local parts, i = {'return ', '5'}, 0 return load(function() i = i + 1 return parts[i] end)()",
    "return pcall(setmetatable, setmetatable({}, {__metatable = 1}), {})",
    "return xpcall(function() error('x', 0) end, function(e) return e .. 'y' end)",
    "return (('x'):rep(3))",
    "return ((function() return 1, 2 end)())",
    "do local a = 1 do local a = 2 end return a end",
    "local a <const> = 1",
    "x = = 1",
    "return 1 1",
    "if x then",
    "for i = 1 do end",
    "return 'abc",
    "return [[abc",
    "--[[ comment",
    "return [==[a]b]=]c]==], [[\nx]]",
    "return '\\65\\066\\n\\t\\\\', \"\\\"\", 'a\\\nb'",
    "return 3x",
    "return 0x",
    "return 1e",
    "return 1..2",
    "break",
    "return ...",
    "local function f() return ... end",
    "f() = 1",
    "local t = {} t.a.b.c = 1",
    "return @",
    "a.b:c = 1",
    "local function f(a, b,) end",
    "return function(a, 1) end",
    "for a, b in 1 do end",
    "for k in pairs(nil) do end",
    "local s = '' for i = 1, 300 do s = s .. '(' end return loadstring('return ' .. s .. '1' .. s:gsub('%(', ')')) == nil",
    "local t = {} for i = 1, 200 do t[i] = i end for i = 1, 200 do t[i] = nil end return #t, next(t)",
    "local t = {} for i = 10, 1, -1 do t[i] = i end return #t",
    "local t = {1, 2, 3} t[#t] = nil t[#t + 1] = 'x' return #t, t[3]",
    "local t = {n = {m = {}}} t.n.m[1] = 'deep' return t['n'].m[1]",
    "local a = 'x' local t = {[a] = 1, [a .. 'y'] = 2, ['z'] = 3} return t.x, t.xy, t.z",
    "local function v(...) return ... end local t = {v(1, 2), v(3, 4)} return #t, (v(5, 6))",
    "local f = function() return end return f(), (f()), select('#', f()), select('#', (f()))",
    "local a = {} a[1], a[2], a[3] = (function() return 1, 2 end)() return #a, a[3]",
    "local x = 1 local function f() x = x + 1 return x end return x + f(), f() + x",
    "return 1 == 1.0, '1' == 1, 0 == -0, 'a' .. 1 == 'a1'",
    "return not (1 > 2) and (2 >= 2) or 3 <= 2, (1 > 2) == false",
    "local a, b = 3, 4 if a > b then return 'gt' elseif a == b then return 'eq' else return 'lt' end",
    "local a = nil if not a and (a == nil or a.b) then return 'ok' end",
    "local a, b, c = 1, nil, 3 return a and b and c, a or b, (a and b) or c, a and (b or c), not a or not b",
    "local t = {} for i, w in ipairs({'x', 'y'}) do t[w] = i end return t.x, t.y",
    "return (2 ^ 0.5) ^ 2, 10 / 4, 1e308 * 10, -(0/0) ~= -(0/0)",
    "local t = setmetatable({}, {__tostring = function() return 'T' end}) return tostring(t)",
    "return #{1, 2, nil}, #{nil, nil, 3}, #{nil}, #{n = 1}",
    "local s = 'k' local r = s .. ':' .. 1 .. ':' .. s return r",
    "local function f(a) return a end return f 'str', f {1}[1], #f {1, 2}",
    "local t = {f = function(self, x) return x end} return t:f 'a', t:f {1}[1]",
    "local i = 1; (function() i = i + 1 end)() return i",
];

#[test]
fn programs_do_what_they_do_in_c() {
    let lua = mlua::Lua::new();
    let mut machine = machine();
    let mut wrong = Vec::new();
    for script in AGREED {
        let script = script.replace("print", "type");
        let (ours, theirs) = (run_in(&mut machine, &script), by_c(&lua, &script));
        if ours != theirs {
            wrong.push(format!("{script}\n  ours   {ours}\n  theirs {theirs}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// For each function and operator, a loop of it on inputs that are as large as they can be: each ends by its budget.
/// What is made in a round is the same each time, or is made anew and ends by memory.
#[rustfmt::skip]
const LOOPS: &[(&str, &str)] = &[
    ("assert", "assert(1, unpack(t))"),
    ("collectgarbage", "collectgarbage('count')"),
    ("error", "pcall(error, s)"),
    ("getmetatable", "getmetatable(t)"),
    ("ipairs", "for i in ipairs(t) do end"),
    ("load", "load(function() return 'x=' end)"),
    ("loadstring", "loadstring(s)"),
    ("next", "next(e)"),
    ("pairs", "for k in pairs(t) do end"),
    ("pcall", "pcall(unpack, t)"),
    ("rawequal", "rawequal(s, r)"),
    ("rawget", "rawget(t, s)"),
    ("rawset", "rawset(t, s, 1)"),
    ("select", "select(2, unpack(t))"),
    ("setmetatable", "setmetatable({}, {})"),
    ("tonumber", "tonumber(d)"),
    ("tostring", "tostring(0.1)"),
    ("type", "type(t)"),
    ("unpack", "unpack(t)"),
    ("xpcall", "xpcall(function() return unpack(t) end, type)"),
    ("string.byte", "s:byte(1, 7000)"),
    ("string.char", "string.char(unpack(b))"),
    ("string.find", "s:find('y')"),
    ("string.format", "string.format('%s%q', s, s)"),
    ("string.gfind", "for w in string.gfind(s, 'x+') do end"),
    ("string.gmatch", "for w in s:gmatch('x+') do end"),
    ("string.gsub", "s:gsub('x', 'y')"),
    ("string.len", "s:len()"),
    ("string.lower", "s:lower()"),
    ("string.match", "s:match(('.-'):rep(9) .. 'y')"),
    ("string.rep", "s:rep(60)"),
    ("string.reverse", "s:reverse()"),
    ("string.sub", "s:sub(2)"),
    ("string.upper", "s:upper()"),
    ("table.concat", "table.concat(t, ',')"),
    ("table.foreach", "table.foreach(t, type)"),
    ("table.foreachi", "table.foreachi(t, type)"),
    ("table.getn", "table.getn(t)"),
    ("table.insert", "table.insert(t, 1, 1)"),
    ("table.maxn", "table.maxn(t)"),
    ("table.remove", "table.remove(t, 1) t[#t + 1] = 1"),
    ("table.sort", "table.sort(t)"),
    ("math.abs", "math.abs(-1)"), ("math.acos", "math.acos(0)"), ("math.asin", "math.asin(0)"),
    ("math.atan", "math.atan(1)"), ("math.atan2", "math.atan2(1, 2)"), ("math.ceil", "math.ceil(1.5)"),
    ("math.cos", "math.cos(1)"), ("math.cosh", "math.cosh(1)"), ("math.deg", "math.deg(1)"),
    ("math.exp", "math.exp(1)"), ("math.floor", "math.floor(d)"), ("math.fmod", "math.fmod(1e308, 3e-300)"),
    ("math.frexp", "math.frexp(3)"), ("math.ldexp", "math.ldexp(1, 3)"), ("math.log", "math.log(2)"),
    ("math.log10", "math.log10(2)"), ("math.max", "math.max(unpack(t))"), ("math.min", "math.min(unpack(t))"),
    ("math.mod", "math.mod(1e308, 3e-300)"), ("math.modf", "math.modf(1.5)"), ("math.pow", "math.pow(1.1, 2.2)"),
    ("math.rad", "math.rad(1)"), ("math.random", "math.random(10)"), ("math.randomseed", "math.randomseed(1)"),
    ("math.sin", "math.sin(1)"), ("math.sinh", "math.sinh(1)"), ("math.sqrt", "math.sqrt(2)"),
    ("math.tan", "math.tan(1)"), ("math.tanh", "math.tanh(1)"),
    ("bit.arshift", "bit.arshift(1, 2)"), ("bit.band", "bit.band(unpack(t))"), ("bit.bnot", "bit.bnot(1)"),
    ("bit.bor", "bit.bor(unpack(t))"), ("bit.bswap", "bit.bswap(1)"), ("bit.bxor", "bit.bxor(unpack(t))"),
    ("bit.lshift", "bit.lshift(1, 2)"), ("bit.rol", "bit.rol(1, 2)"), ("bit.ror", "bit.ror(1, 2)"),
    ("bit.rshift", "bit.rshift(1, 2)"), ("bit.tobit", "bit.tobit(1)"), ("bit.tohex", "bit.tohex(1)"),
    ("cjson.decode", "cjson.decode(j)"),
    ("cjson.encode", "cjson.encode(t)"),
    ("cjson.decode_invalid_numbers", "cjson.decode_invalid_numbers(true)"),
    ("cjson.decode_max_depth", "cjson.decode_max_depth(9)"),
    ("cjson.encode_invalid_numbers", "cjson.encode_invalid_numbers(true)"),
    ("cjson.encode_keep_buffer", "cjson.encode_keep_buffer(true)"),
    ("cjson.encode_max_depth", "cjson.encode_max_depth(9)"),
    ("cjson.encode_number_precision", "cjson.encode_number_precision(9)"),
    ("cjson.encode_sparse_array", "cjson.encode_sparse_array(true)"),
    ("cjson.new", "cjson.new()"),
    ("cmsgpack.pack", "cmsgpack.pack(t, s)"),
    ("cmsgpack.unpack", "cmsgpack.unpack(p)"),
    ("cmsgpack.unpack_limit", "cmsgpack.unpack_limit(p, 9)"),
    ("cmsgpack.unpack_one", "cmsgpack.unpack_one(p)"),
    ("struct.pack", "struct.pack('s', s)"),
    ("struct.size", "struct.size(('i'):rep(9000))"),
    ("struct.unpack", "struct.unpack(('B'):rep(7000), s)"),
    ("gmatch_step", "for w in s:gmatch('.') do end"),
    ("ipairs_step", "for i in ipairs(t) do end"),
    ("missing", "pcall(function() return nowhere end)"),
];

const OPERATOR_LOOPS: &[(cost::Operator, &str)] = &[
    (cost::Operator::Concat, "local x = s .. s .. r"),
    (cost::Operator::Compare, "local x = s < r, s == r, s <= r"),
    (cost::Operator::Coerce, "local x = d + 1"),
    (cost::Operator::Metamethod, "local x = m.nothing"),
    (cost::Operator::Values, "local x = {unpack(t)}"),
    (cost::Operator::Closure, "local x = function() return t, s, r end"),
    (cost::Operator::Call, "(function(...) end)(unpack(t))"),
    (cost::Operator::Walk, "next(e)"),
];

/// Large inputs for the loops: strings, a list, an emptied table, a chain of metatables.
const INPUTS: &str = "local s, r = ('x'):rep(200000), ('x'):rep(199999) .. 'y' \
    local d, t, b, e = ('1'):rep(200), {}, {}, {} \
    for i = 1, 7000 do t[i] = 7000 - i b[i] = 65 e['k' .. i] = 1 end \
    for i = 1, 7000 do e['k' .. i] = nil end \
    local m = {} for i = 1, 98 do m = setmetatable({}, {__index = m}) end \
    local j, p = cjson.encode(t), cmsgpack.pack(t, s) ";

/// Runs a loop to its end. Answers the rounds that it did.
fn rounds(body: &str) -> u64 {
    let mut machine = machine();
    machine.begin(Budget::new(WORK, MEMORY), 1);
    let script = format!("{INPUTS} while true do {body} math.randomseed(1) end");
    let program = compile(script.as_bytes(), "user_script", MEMORY, WORK as u64).unwrap();
    let main = machine.load(&program).unwrap();
    let ran = machine.run(&mut NoHost, main, &[]);
    assert!(matches!(ran, Err(Fault::Dead)), "{body}: {ran:?}");
    let death = machine.heap.budget.death();
    assert!(matches!(death, Some(Death::Work | Death::Memory)), "{body}: {death:?}");
    machine.heap.budget.used() as u64
}

#[test]
fn a_loop_of_anything_ends_within_its_budget() {
    for (name, body) in LOOPS {
        assert!(library::ROWS.iter().any(|row| row.name == *name), "{name} is no row");
        assert!(rounds(body) <= MEMORY as u64 * 2, "{name}");
    }
    for (operator, body) in OPERATOR_LOOPS {
        assert!(rounds(body) <= MEMORY as u64 * 2, "{operator:?}");
    }
    for row in library::ROWS {
        assert!(LOOPS.iter().any(|(name, _)| *name == row.name), "{} has no loop", row.name);
        assert!(row.cost.base > 0 && row.cost.bytes_per_unit > 0, "{} costs nothing", row.name);
    }
    for (operator, _) in cost::OPERATORS {
        assert!(OPERATOR_LOOPS.iter().any(|(other, _)| other == operator), "{operator:?} has no loop");
    }
}

/// A round of these touches 200,000 bytes or 7,000 items, so that few rounds use up the budget.
#[test]
fn large_inputs_cost_more_than_small_ones() {
    for (body, most) in [
        ("s:upper()", 200),
        ("s:reverse()", 200),
        ("local x = s < r", 1500),
        ("local x = s == r", 1500),
        ("table.maxn(t)", 700),
        ("next(e)", 700),
        ("unpack(t)", 700),
        ("cjson.encode(t)", 200),
        ("cmsgpack.unpack(p)", 200),
        ("tonumber(s)", 200),
        ("table.concat(t)", 400),
        ("local x = m.nothing", 40_000),
        ("loadstring(s)", 100),
        ("s:find('y')", 300),
        ("s:find('[' .. ('a'):rep(9000) .. ']')", 10),
    ] {
        let script = format!(
            "{INPUTS} local n = 0 local ok = pcall(function() while n < {most} do n = n + 1 {body} end end) return n"
        );
        let ended = run(&script);
        assert!(ended.starts_with("dead"), "{body}: {ended} rounds");
    }
}

#[test]
fn every_function_that_a_script_can_reach_is_a_row() {
    let machine = machine();
    let (mut seen, mut left) = (vec![machine.globals()], vec![machine.globals()]);
    let mut functions = Vec::new();
    let meta = machine.string_meta;
    left.push(meta);
    while let Some(table) = left.pop() {
        let reached = machine.heap.pairs(table).flat_map(|(key, value)| [key, value]);
        let metatable = machine.metatable(Value::Table(table)).map(Value::Table);
        for value in reached.chain(metatable) {
            match value {
                Value::Table(table) if !seen.contains(&table) => {
                    seen.push(table);
                    left.push(table);
                }
                Value::Native(native) => functions.push(machine.row(native).expect("a row").name),
                Value::Closure(_) => panic!("a function written in Lua is in the base"),
                _ => {}
            }
        }
    }
    for row in library::ROWS {
        let hidden = matches!(row.body, Body::Hidden(_)) && row.name != "missing";
        assert_eq!(functions.contains(&row.name), !hidden, "{}", row.name);
    }
}

/// A run that is stopped from outside says where it was.
#[test]
fn a_run_that_is_stopped_knows_its_line() {
    struct Stopping(std::sync::Arc<std::sync::atomic::AtomicBool>);
    impl Host for Stopping {
        fn call(&mut self, _: &mut Machine, _: u16, _: Args) -> Result<()> {
            self.0.store(true, std::sync::atomic::Ordering::Relaxed);
            Ok(())
        }
    }
    const ROWS: &[Row] =
        &[Row { name: "stop", cost: crate::cost::cost(1, crate::cost::COPY, 0), body: Body::Host(0) }];
    for (source, line) in [
        ("\nstop()\nwhile true do end", 3),
        ("\nwhile true do pcall(function() stop()\n while true do end end) end", 3),
        ("stop()\n\nfor i = 1, 1e9 do local s = ('x'):rep(100) end", 3),
    ] {
        let mut machine = Machine::new(ROWS);
        machine.seal();
        let mut host = Stopping(std::sync::Arc::default());
        machine.begin(Budget::new(WORK, MEMORY).stopped_by(host.0.clone()), 1);
        let program = compile(source.as_bytes(), "script", MEMORY, WORK as u64).unwrap();
        let main = machine.load(&program).unwrap();
        assert!(matches!(machine.run(&mut host, main, &[]), Err(Fault::Dead)));
        assert_eq!(machine.heap.budget.death(), Some(crate::Death::Stopped));
        assert_eq!(machine.error_line(), line, "{source}");
    }
}
