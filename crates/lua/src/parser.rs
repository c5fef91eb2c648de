//! From words to a tree.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ast::{Binary, BlockId, Expr, ExprId, Field, Function, NameId, Stat, Tree, Unary};
use crate::budget::Budget;
use crate::lexer::{Lexed, Lexer, SyntaxError, Token};

/// The deepest nesting of syntax.
const MAX_LEVELS: u32 = 200;
/// Bytes that a node of the tree is counted as, with what the compiler makes of it.
const NODE_BYTES: usize = 96;

/// A refusal of a source.
#[derive(Debug)]
pub(crate) enum Refusal {
    Syntax(SyntaxError),
    /// The budget is used up.
    Dead,
}

impl From<SyntaxError> for Refusal {
    fn from(error: SyntaxError) -> Refusal {
        Refusal::Syntax(error)
    }
}

type Parsed<T> = Result<T, Refusal>;

pub(crate) struct Parser<'a, 'b> {
    lexer: Lexer<'a>,
    token: Token,
    /// The place of the token and the line where the one before it ended.
    start: usize,
    line: u32,
    last_line: u32,
    ahead: Option<(Token, usize, u32)>,
    tree: Tree,
    names: BTreeMap<Arc<[u8]>, NameId>,
    levels: u32,
    loops: u32,
    varargs: Vec<bool>,
    budget: &'b mut Budget,
}

fn priority(sign: &str) -> Option<(Binary, u8, u8)> {
    Some(match sign {
        "+" => (Binary::Add, 6, 6),
        "-" => (Binary::Sub, 6, 6),
        "*" => (Binary::Mul, 7, 7),
        "/" => (Binary::Div, 7, 7),
        "%" => (Binary::Mod, 7, 7),
        "^" => (Binary::Pow, 10, 9),
        ".." => (Binary::Concat, 5, 4),
        "~=" => (Binary::Ne, 3, 3),
        "==" => (Binary::Eq, 3, 3),
        "<" => (Binary::Lt, 3, 3),
        "<=" => (Binary::Le, 3, 3),
        ">" => (Binary::Gt, 3, 3),
        ">=" => (Binary::Ge, 3, 3),
        "and" => (Binary::And, 2, 2),
        "or" => (Binary::Or, 1, 1),
        _ => return None,
    })
}

const UNARY_PRIORITY: u8 = 8;

impl<'a, 'b> Parser<'a, 'b> {
    /// Parses a chunk: a function without parameters that takes any arguments.
    pub fn parse(source: &'a [u8], budget: &'b mut Budget) -> Parsed<(Tree, Function)> {
        let mut parser = Parser {
            lexer: Lexer::new(source),
            token: Token::End,
            start: 0,
            line: 1,
            last_line: 1,
            ahead: None,
            tree: Tree::default(),
            names: BTreeMap::new(),
            levels: 0,
            loops: 0,
            varargs: vec![true],
            budget,
        };
        parser.advance()?;
        let body = parser.block()?;
        if parser.token != Token::End {
            return parser.expected("<eof>");
        }
        let last_line = parser.line;
        let function = Function { params: Vec::new(), is_vararg: true, body, line: 0, last_line };
        Ok((parser.tree, function))
    }

    fn lex(&mut self) -> Lexed<(Token, usize, u32)> {
        let (token, start) = self.lexer.next()?;
        Ok((token, start, self.lexer.line))
    }

    fn advance(&mut self) -> Parsed<Token> {
        self.last_line = self.line;
        let (token, start, line) = match self.ahead.take() {
            Some(ahead) => ahead,
            None => self.lex()?,
        };
        (self.start, self.line) = (start, line);
        Ok(std::mem::replace(&mut self.token, token))
    }

    fn peek(&mut self) -> Parsed<&Token> {
        if self.ahead.is_none() {
            self.ahead = Some(self.lex()?);
        }
        Ok(self.ahead.as_ref().map_or(&Token::End, |(token, ..)| token))
    }

    fn is(&self, sign: &str) -> bool {
        matches!(self.token, Token::Sign(s) if s == sign)
    }

    fn skip(&mut self, sign: &str) -> Parsed<bool> {
        let is = self.is(sign);
        if is {
            self.advance()?;
        }
        Ok(is)
    }

    fn fail<T>(&self, text: String) -> Parsed<T> {
        let near = match &self.token {
            Token::End => b"<eof>".to_vec(),
            Token::Sign(sign) => sign.as_bytes().to_vec(),
            // With a word read ahead, the lexer stands behind that one.
            Token::Name(name) => name.to_vec(),
            Token::Other(b) if b.is_ascii_control() => format!("char({b})").into_bytes(),
            Token::Other(b) => vec![*b],
            Token::Text(text) if self.ahead.is_some() => text.to_vec(),
            _ => self.lexer.text_from(self.start).to_vec(),
        };
        Err(SyntaxError { text, near: Some(near), line: self.line }.into())
    }

    fn fail_plainly<T>(&self, text: &str) -> Parsed<T> {
        Err(SyntaxError { text: text.into(), near: None, line: self.line }.into())
    }

    fn expected<T>(&self, what: &str) -> Parsed<T> {
        self.fail(format!("'{what}' expected"))
    }

    fn expect(&mut self, sign: &'static str) -> Parsed<()> {
        if self.skip(sign)? { Ok(()) } else { self.expected(sign) }
    }

    fn expect_close(&mut self, close: &'static str, open: &str, line: u32) -> Parsed<()> {
        if self.skip(close)? {
            return Ok(());
        }
        if line == self.line {
            return self.expected(close);
        }
        self.fail(format!("'{close}' expected (to close '{open}' at line {line})"))
    }

    fn node(&mut self) -> Parsed<()> {
        self.budget.take(NODE_BYTES).and_then(|()| self.budget.work(8)).map_err(|_| Refusal::Dead)
    }

    fn expr_at(&mut self, expr: Expr, line: u32) -> Parsed<ExprId> {
        self.node()?;
        self.tree.exprs.push((expr, line));
        Ok(self.tree.exprs.len() as u32 - 1)
    }

    fn name_id(&mut self, name: Box<[u8]>) -> Parsed<NameId> {
        if let Some(id) = self.names.get(&*name) {
            return Ok(*id);
        }
        self.budget.take(2 * name.len() + NODE_BYTES).map_err(|_| Refusal::Dead)?;
        let id = self.tree.names.len() as u32;
        let name: Arc<[u8]> = name.into();
        self.tree.names.push(name.clone());
        self.names.insert(name, id);
        Ok(id)
    }

    fn name(&mut self) -> Parsed<NameId> {
        match &self.token {
            Token::Name(_) => {
                let Token::Name(name) = self.advance()? else { return self.expected("<name>") };
                self.name_id(name)
            }
            _ => self.expected("<name>"),
        }
    }

    /// The rest of a list of names.
    fn names(&mut self, first: NameId) -> Parsed<Vec<NameId>> {
        let mut names = vec![first];
        while self.skip(",")? {
            names.push(self.name()?);
        }
        Ok(names)
    }

    /// The field of a value, whose name comes next.
    fn field(&mut self, of: ExprId, line: u32) -> Parsed<ExprId> {
        let key = self.name()?;
        let key = self.expr_at(Expr::Text(key), line)?;
        self.expr_at(Expr::Index(of, key), line)
    }

    fn enter(&mut self) -> Parsed<()> {
        self.levels += 1;
        if self.levels > MAX_LEVELS { self.fail_plainly("chunk has too many syntax levels") } else { Ok(()) }
    }

    fn ends_block(&self) -> bool {
        match self.token {
            Token::End => true,
            Token::Sign(sign) => matches!(sign, "else" | "elseif" | "end" | "until"),
            _ => false,
        }
    }

    fn block(&mut self) -> Parsed<BlockId> {
        self.enter()?;
        let mut stats = Vec::new();
        while !self.ends_block() {
            let line = self.line;
            self.node()?;
            let (stat, last) = self.statement()?;
            stats.push((stat, line));
            self.skip(";")?;
            if last {
                break;
            }
        }
        self.levels -= 1;
        self.tree.blocks.push(stats);
        Ok(self.tree.blocks.len() as u32 - 1)
    }

    fn loop_block(&mut self) -> Parsed<BlockId> {
        self.loops += 1;
        let block = self.block()?;
        self.loops -= 1;
        Ok(block)
    }

    /// A statement, and whether nothing may follow it in its block.
    fn statement(&mut self) -> Parsed<(Stat, bool)> {
        let line = self.line;
        let Token::Sign(sign) = self.token else { return Ok((self.expression_statement()?, false)) };
        let stat = match sign {
            "if" => self.if_statement(line)?,
            "while" => {
                self.advance()?;
                let condition = self.expression()?;
                self.expect("do")?;
                let block = self.loop_block()?;
                self.expect_close("end", "while", line)?;
                Stat::While(condition, block)
            }
            "do" => {
                self.advance()?;
                let block = self.block()?;
                self.expect_close("end", "do", line)?;
                Stat::Do(block)
            }
            "for" => self.for_statement(line)?,
            "repeat" => {
                self.advance()?;
                let block = self.loop_block()?;
                self.expect_close("until", "repeat", line)?;
                Stat::Repeat(block, self.expression()?)
            }
            "function" => {
                self.advance()?;
                let name_line = self.line;
                let name = self.name()?;
                let mut target = self.expr_at(Expr::Name(name), name_line)?;
                let mut is_method = false;
                let mut count = 0;
                while !is_method && (self.is(".") || self.is(":")) {
                    is_method = self.is(":");
                    self.advance()?;
                    target = self.field(target, name_line)?;
                    count += 1;
                    if count > MAX_LEVELS {
                        return self.fail_plainly("chunk has too many syntax levels");
                    }
                }
                let function = self.function_body(is_method, line)?;
                Stat::Assign(vec![target], vec![function])
            }
            "local" => {
                self.advance()?;
                if self.skip("function")? {
                    let name = self.name()?;
                    Stat::LocalFunction(name, self.function_body(false, line)?)
                } else {
                    let first = self.name()?;
                    let names = self.names(first)?;
                    let values = if self.skip("=")? { self.expressions()? } else { Vec::new() };
                    Stat::Local(names, values)
                }
            }
            "return" => {
                self.advance()?;
                let none = self.ends_block() || self.is(";");
                let values = if none { Vec::new() } else { self.expressions()? };
                self.skip(";")?;
                return Ok((Stat::Return(values), true));
            }
            "break" => {
                self.advance()?;
                if self.loops == 0 {
                    return self.fail("no loop to break".into());
                }
                return Ok((Stat::Break, true));
            }
            _ => self.expression_statement()?,
        };
        Ok((stat, false))
    }

    fn if_statement(&mut self, line: u32) -> Parsed<Stat> {
        let mut arms = Vec::new();
        let mut otherwise = None;
        loop {
            self.advance()?;
            let condition = self.expression()?;
            self.expect("then")?;
            arms.push((condition, self.block()?));
            if self.is("elseif") {
                continue;
            }
            if self.skip("else")? {
                otherwise = Some(self.block()?);
            }
            self.expect_close("end", "if", line)?;
            return Ok(Stat::If(arms, otherwise));
        }
    }

    fn for_statement(&mut self, line: u32) -> Parsed<Stat> {
        self.advance()?;
        let first = self.name()?;
        let stat = if self.skip("=")? {
            let from = self.expression()?;
            self.expect(",")?;
            let to = self.expression()?;
            let step = if self.skip(",")? { Some(self.expression()?) } else { None };
            self.expect("do")?;
            Stat::For(first, from, to, step, self.loop_block()?)
        } else if self.is(",") || self.is("in") {
            let names = self.names(first)?;
            self.expect("in")?;
            let values = self.expressions()?;
            self.expect("do")?;
            Stat::ForIn(names, values, self.loop_block()?)
        } else {
            return self.fail("'=' or 'in' expected".into());
        };
        self.expect_close("end", "for", line)?;
        Ok(stat)
    }

    fn expression_statement(&mut self) -> Parsed<Stat> {
        let first = self.suffixed()?;
        if matches!(self.tree.exprs[first as usize].0, Expr::Call(..) | Expr::Method(..)) {
            return Ok(Stat::Expr(first));
        }
        let mut targets = vec![first];
        while self.skip(",")? {
            targets.push(self.suffixed()?);
            if targets.len() > MAX_LEVELS as usize {
                return self.fail_plainly("chunk has too many syntax levels");
            }
        }
        let assignable =
            |id: &ExprId| matches!(self.tree.exprs[*id as usize].0, Expr::Name(_) | Expr::Index(..));
        if !targets.iter().all(assignable) {
            return self.fail("syntax error".into());
        }
        self.expect("=")?;
        let values = self.expressions()?;
        Ok(Stat::Assign(targets, values))
    }

    fn expressions(&mut self) -> Parsed<Vec<ExprId>> {
        let mut list = vec![self.expression()?];
        while self.skip(",")? {
            list.push(self.expression()?);
        }
        Ok(list)
    }

    fn expression(&mut self) -> Parsed<ExprId> {
        self.operators(0)
    }

    fn operators(&mut self, limit: u8) -> Parsed<ExprId> {
        self.enter()?;
        let line = self.line;
        let unary = match self.token {
            Token::Sign("-") => Some(Unary::Minus),
            Token::Sign("not") => Some(Unary::Not),
            Token::Sign("#") => Some(Unary::Len),
            _ => None,
        };
        let mut left = match unary {
            Some(unary) => {
                self.advance()?;
                let operand = self.operators(UNARY_PRIORITY)?;
                match (unary, &self.tree.exprs[operand as usize].0) {
                    (Unary::Minus, Expr::Number(x)) => {
                        let negative = -*x;
                        self.expr_at(Expr::Number(negative), line)?
                    }
                    _ => self.expr_at(Expr::Unary(unary, operand), line)?,
                }
            }
            None => self.simple()?,
        };
        while let Token::Sign(sign) = self.token
            && let Some((operator, left_priority, right_priority)) = priority(sign)
            && left_priority > limit
        {
            let line = self.line;
            self.advance()?;
            let right = self.operators(right_priority)?;
            left = self.expr_at(Expr::Binary(operator, left, right), line)?;
        }
        self.levels -= 1;
        Ok(left)
    }

    fn simple(&mut self) -> Parsed<ExprId> {
        let line = self.line;
        let expr = match &self.token {
            Token::Number(x) => Expr::Number(*x),
            Token::Text(_) => {
                let Token::Text(text) = self.advance()? else { return self.expected("<string>") };
                let text = self.name_id(text)?;
                return self.expr_at(Expr::Text(text), line);
            }
            Token::Sign("nil") => Expr::Nil,
            Token::Sign("true") => Expr::True,
            Token::Sign("false") => Expr::False,
            Token::Sign("...") => {
                if self.varargs.last() != Some(&true) {
                    return self.fail("cannot use '...' outside a vararg function".into());
                }
                Expr::Vararg
            }
            Token::Sign("{") => return self.table(),
            Token::Sign("function") => {
                self.advance()?;
                return self.function_body(false, line);
            }
            _ => return self.suffixed(),
        };
        self.advance()?;
        self.expr_at(expr, line)
    }

    fn suffixed(&mut self) -> Parsed<ExprId> {
        let line = self.line;
        let mut expr = match &self.token {
            Token::Sign("(") => {
                self.advance()?;
                let inner = self.expression()?;
                self.expect_close(")", "(", line)?;
                self.expr_at(Expr::Paren(inner), line)?
            }
            Token::Name(_) => {
                let name = self.name()?;
                self.expr_at(Expr::Name(name), line)?
            }
            _ => return self.fail("unexpected symbol".into()),
        };
        for count in 0.. {
            if count > MAX_LEVELS {
                return self.fail_plainly("chunk has too many syntax levels");
            }
            let line = self.line;
            expr = match &self.token {
                Token::Sign(".") => {
                    self.advance()?;
                    self.field(expr, line)?
                }
                Token::Sign("[") => {
                    self.advance()?;
                    let key = self.expression()?;
                    self.expect("]")?;
                    self.expr_at(Expr::Index(expr, key), line)?
                }
                Token::Sign(":") => {
                    self.advance()?;
                    let name = self.name()?;
                    let args = self.arguments()?;
                    self.expr_at(Expr::Method(expr, name, args), line)?
                }
                Token::Sign("(" | "{") | Token::Text(_) => {
                    let args = self.arguments()?;
                    self.expr_at(Expr::Call(expr, args), line)?
                }
                _ => break,
            };
        }
        Ok(expr)
    }

    fn arguments(&mut self) -> Parsed<Vec<ExprId>> {
        let line = self.line;
        match &self.token {
            Token::Text(_) => Ok(vec![self.simple()?]),
            Token::Sign("{") => Ok(vec![self.table()?]),
            Token::Sign("(") => {
                if line != self.last_line {
                    return self.fail("ambiguous syntax (function call x new statement)".into());
                }
                self.advance()?;
                if self.skip(")")? {
                    return Ok(Vec::new());
                }
                let args = self.expressions()?;
                self.expect_close(")", "(", line)?;
                Ok(args)
            }
            _ => self.fail("function arguments expected".into()),
        }
    }

    fn table(&mut self) -> Parsed<ExprId> {
        let line = self.line;
        self.expect("{")?;
        let mut fields = Vec::new();
        while !self.is("}") {
            self.node()?;
            let is_named = matches!(self.token, Token::Name(_)) && *self.peek()? == Token::Sign("=");
            if is_named {
                let line = self.line;
                let name = self.name()?;
                let key = self.expr_at(Expr::Text(name), line)?;
                self.expect("=")?;
                fields.push(Field::Pair(key, self.expression()?));
            } else if self.skip("[")? {
                let key = self.expression()?;
                self.expect("]")?;
                self.expect("=")?;
                fields.push(Field::Pair(key, self.expression()?));
            } else {
                fields.push(Field::Item(self.expression()?));
            }
            if !self.skip(",")? && !self.skip(";")? {
                break;
            }
        }
        self.expect_close("}", "{", line)?;
        self.expr_at(Expr::Table(fields), line)
    }

    fn function_body(&mut self, is_method: bool, line: u32) -> Parsed<ExprId> {
        let mut params = Vec::new();
        if is_method {
            params.push(self.name_id((*b"self").into())?);
        }
        self.expect("(")?;
        let mut is_vararg = false;
        if !self.is(")") {
            loop {
                if self.skip("...")? {
                    is_vararg = true;
                    break;
                }
                if !matches!(self.token, Token::Name(_)) {
                    return self.fail("<name> or '...' expected".into());
                }
                params.push(self.name()?);
                if !self.skip(",")? {
                    break;
                }
            }
        }
        self.expect(")")?;
        self.varargs.push(is_vararg);
        let loops = std::mem::take(&mut self.loops);
        let body = self.block()?;
        self.loops = loops;
        self.varargs.pop();
        let last_line = self.line;
        self.expect_close("end", "function", line)?;
        self.expr_at(Expr::Function(Box::new(Function { params, is_vararg, body, line, last_line })), line)
    }
}
