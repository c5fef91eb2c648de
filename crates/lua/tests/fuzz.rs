//! Drawn sources and calls of library functions, most of them senseless, through the machine. Each ends within its budget, without
//! a panic, and in the same way in a machine that has run others before and in a new one.

use std::fmt::Write as _;

use ordain_fuzz::{Source, target};
use ordain_lua::{Budget, CompileError, Fault, Machine, NoHost, Value, compile, library};

const WORK: i64 = 200_000;
const MEMORY: usize = 4 << 20;

/// Runs a source. Answers how it ended, and what is left of its budget.
fn run(machine: &mut Machine, source: &[u8]) -> String {
    machine.begin(Budget::new(WORK, MEMORY), 7);
    let program = match compile(source, "user_script", MEMORY, WORK as u64) {
        Ok(program) => program,
        Err(CompileError::Syntax(text)) => return String::from_utf8_lossy(&text).into_owned(),
        Err(CompileError::Dead(death)) => return format!("{death:?}"),
    };
    let ran = machine.load(&program).and_then(|main| machine.run(&mut NoHost, main, &[]));
    let mut out = match ran {
        Ok(values) => values.into_iter().fold(String::new(), |out, value| out + &show(machine, value)),
        Err(Fault::Error(value)) => format!("error {}", show(machine, value)),
        Err(Fault::Text(text)) => format!("text {}", String::from_utf8_lossy(&text)),
        Err(Fault::Dead) => format!("dead {:?}", machine.heap.budget.death()),
    };
    let _ = write!(out, " left {} used {}", machine.heap.budget.left(), machine.heap.budget.used());
    out
}

fn show(machine: &Machine, value: Value) -> String {
    match value {
        Value::String(s) => String::from_utf8_lossy(machine.heap.bytes(s)).into_owned(),
        Value::Number(x) => x.to_string(),
        other => other.type_name().into(),
    }
}

fn machine() -> Machine {
    let mut machine = Machine::new(&[]);
    machine.seal();
    machine
}

fn check(used: &mut Machine, source: &[u8]) {
    let first = run(used, source);
    let text = String::from_utf8_lossy(source);
    assert_eq!(run(used, source), first, "run again: {text}");
    assert_eq!(run(&mut machine(), source), first, "in a new machine: {text}");
}

/// Writes a program: statements and expressions of every kind, with names that mostly exist.
struct Author<'a> {
    source: &'a mut Source,
    out: String,
    depth: usize,
}

impl Author<'_> {
    fn put(&mut self, text: &str) {
        self.out.push_str(text);
        self.out.push(' ');
    }

    fn name(&mut self) {
        let name =
            *self.source.pick(&["a", "b", "c", "t", "f", "s", "i", "k", "arg", "string", "cjson", "_G"]);
        self.put(name);
    }

    fn list(&mut self, most: usize, one: fn(&mut Self)) {
        for i in 0..self.source.within(1..most + 1) {
            if i > 0 {
                self.put(",");
            }
            one(self);
        }
    }

    fn expression(&mut self) {
        self.depth += 1;
        let simple = self.depth > 6;
        match self.source.within(0..if simple { 7 } else { 20 }) {
            0 => self.put("nil"),
            1 => self.put("true"),
            2 => {
                let number = self.source.edge();
                self.put(&format!("({number})"));
            }
            3 => {
                let text = *self.source.pick(&[
                    "''",
                    "'x'",
                    "'10'",
                    "[[\n]]",
                    "'%d+'",
                    "('x'):rep(99)",
                    "'\\0\\255'",
                ]);
                self.put(text);
            }
            4 => self.put("..."),
            5 | 6 => self.name(),
            7 => {
                self.put("{");
                self.list(4, Self::expression);
                self.put("}");
            }
            8 => {
                self.put("{ x =");
                self.expression();
                self.put(", [");
                self.expression();
                self.put("] =");
                self.expression();
                self.put("}");
            }
            9 => {
                self.put("function(a, ...)");
                self.block();
                self.put("end");
            }
            10..=12 => {
                self.expression();
                let operators =
                    ["+", "-", "*", "/", "%", "^", "..", "==", "~=", "<", "<=", ">", ">=", "and", "or"];
                let operator = *self.source.pick(&operators);
                self.put(operator);
                self.expression();
            }
            13 => {
                let operator = *self.source.pick(&["-", "not", "#"]);
                self.put(operator);
                self.expression();
            }
            14 => {
                self.name();
                self.put("[");
                self.expression();
                self.put("]");
            }
            15 => {
                self.name();
                self.put(".x");
            }
            16 => {
                self.put("(");
                self.expression();
                self.put(")");
            }
            17 => {
                self.put("setmetatable({}, {");
                let event = *self.source.pick(&[
                    "__index",
                    "__newindex",
                    "__call",
                    "__add",
                    "__concat",
                    "__eq",
                    "__lt",
                    "__le",
                    "__unm",
                    "__tostring",
                ]);
                self.put(event);
                self.put("=");
                self.expression();
                self.put("})");
            }
            _ => self.call(),
        }
        self.depth -= 1;
    }

    fn call(&mut self) {
        if self.source.once_in(3) {
            self.name();
            if self.source.once_in(3) {
                self.put(":x");
            }
        } else {
            let row = self.source.pick(library::ROWS).name;
            self.put(row);
        }
        self.put("(");
        if !self.source.once_in(5) {
            self.list(4, Self::expression);
        }
        self.put(")");
    }

    fn block(&mut self) {
        self.depth += 1;
        for _ in 0..self.source.within(0..if self.depth > 5 { 2 } else { 5 }) {
            self.statement();
        }
        match self.source.within(0..8) {
            0 => {
                self.put("return");
                self.list(3, Self::expression);
            }
            1 => self.put("break"),
            _ => {}
        }
        self.depth -= 1;
    }

    fn statement(&mut self) {
        match self.source.within(0..if self.depth > 5 { 4 } else { 12 }) {
            0 => {
                self.put("local a, b =");
                self.list(3, Self::expression);
            }
            1 => {
                self.name();
                self.put("=");
                self.expression();
            }
            2 => self.call(),
            3 => {
                self.put("local t, s = {}, 'abc'");
            }
            4 => {
                self.name();
                self.put(",");
                self.name();
                self.put("[");
                self.expression();
                self.put("] =");
                self.list(3, Self::expression);
            }
            5 => {
                self.put("if");
                self.expression();
                self.put("then");
                self.block();
                self.put("else");
                self.block();
                self.put("end");
            }
            6 => {
                self.put("while");
                self.expression();
                self.put("do");
                self.block();
                self.put("end");
            }
            7 => {
                self.put("for i =");
                self.list(3, Self::expression);
                self.put("do");
                self.block();
                self.put("end");
            }
            8 => {
                self.put("for k, v in");
                let walk =
                    *self.source.pick(&["pairs(t)", "ipairs(t)", "next, t", "('a b'):gmatch('%a')", "f"]);
                self.put(walk);
                self.put("do");
                self.block();
                self.put("end");
            }
            9 => {
                self.put("repeat");
                self.block();
                self.put("until");
                self.expression();
            }
            10 => {
                self.put("local function f(a, b, ...)");
                self.block();
                self.put("end");
            }
            _ => {
                self.put("pcall(function(...)");
                self.block();
                self.put("end)");
            }
        }
    }
}

fn program(source: &mut Source) -> String {
    let out =
        "local a, b, c, t, f, s, i, k = 1, 'b', {}, {1, 2, x = 3}, function(...) return ... end, 'abc' "
            .into();
    let mut author = Author { source, out, depth: 0 };
    author.block();
    author.out
}

#[test]
fn fuzz_lua_programs() {
    let mut used = machine();
    target("lua_programs", 400, |source| {
        let text = program(source);
        check(&mut used, text.as_bytes());
    });
}

#[test]
fn fuzz_lua_sources() {
    let mut used = machine();
    target("lua_sources", 400, |source| {
        let mut text = program(source).into_bytes();
        for _ in 0..source.within(1..4) {
            source.damage(&mut text);
        }
        if source.once_in(4) {
            // A piece many times over: deep, long, or both.
            let piece = *source.pick(&[
                "(",
                "{",
                "f(",
                "a.",
                "not ",
                "-",
                "a..",
                "a+",
                "[=",
                "do ",
                "function() ",
                "if a then ",
            ]);
            let text_at = source.within(0..text.len());
            let many = piece.repeat(source.within(1..3000));
            text.splice(text_at..text_at, many.into_bytes());
        }
        check(&mut used, &text);
    });
}

/// A value that a library function is likely to get wrong.
fn argument(source: &mut Source) -> String {
    let edge = source.edge();
    let near = source.within(0..12);
    match source.within(0..14) {
        0 => "nil".into(),
        1 => "true".into(),
        2 => format!("{edge}"),
        3 => format!("{near}"),
        4 => (*source.pick(&["0/0", "1/0", "-1/0", "1e300", "-1e300", "0.5", "-0", "2^53"])).into(),
        5 => format!("('x'):rep({})", source.within(0..3000)),
        6 => (*source.pick(&[
            "'%d+'",
            "'(.-)%1'",
            "'%b()'",
            "'%f[%w]'",
            "'[^%s]*$'",
            "'^(a*)*'",
            "'%'",
            "'['",
        ]))
        .into(),
        7 => (*source.pick(&[
            "'%5.2f'",
            "'%q'",
            "'%s%s'",
            "'%99.99f'",
            "'%-+ #0d'",
            "'i4>!8c0s'",
            "'c0'",
            "'bi32x'",
        ]))
        .into(),
        8 => (*source.pick(&["'[1,{\"a\":null}]'", "'[[[['", "'\"\\\\ud800\"'", "'1e999'", "'{'"])).into(),
        9 => (*source.pick(&[
            "'\\147\\1\\2\\3'",
            "'\\222\\255\\255'",
            "'\\219\\255\\255\\255\\255'",
            "'\\193'",
        ]))
        .into(),
        10 => (*source.pick(&[
            "{}",
            "{1, 2, 3}",
            "{a = 1, [2^31] = 2}",
            "{{}, {{}}}",
            "t",
            "_G",
            "string",
            "c",
        ]))
        .into(),
        11 => (*source.pick(&[
            "function(...) return ... end",
            "print",
            "error",
            "type",
            "string.rep",
            "function() return t end",
        ]))
        .replace("print", "next"),
        12 => "string.char(0, 255, 37)".into(),
        _ => "cjson.null".into(),
    }
}

#[test]
fn fuzz_lua_library() {
    let mut used = machine();
    target("lua_library", 600, |source| {
        let mut text = "local t = {1, 'x', a = {}} local c = {} c.c = c local r = {} ".to_string();
        for _ in 0..source.within(1..6) {
            let row = source.pick(library::ROWS);
            if matches!(row.body, library::Body::Hidden(_)) {
                continue;
            }
            let arguments: Vec<String> = (0..source.within(0..5)).map(|_| argument(source)).collect();
            let _ = write!(
                text,
                "r[#r + 1] = tostring(select(2, pcall({}, {}))) ",
                row.name,
                arguments.join(", ")
            );
        }
        let text = text.replace(", ))", "))") + " return #r, r[1], r[2], r[3], next(t), #t, cjson.encode(r)";
        check(&mut used, text.as_bytes());
    });
}
