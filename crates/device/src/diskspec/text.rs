//! The syntax of DiskSim-4 parameter files: `type name { key = value, … }`, values being words, lists or blocks.

/// Reason why a parameter file can't be used, with the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskspecError {
    /// The file, as it was named.
    pub file: String,
    /// Line in it, from 1; 0 if the file as a whole is meant.
    pub line: usize,
    /// Problem.
    pub what: String,
}

impl std::fmt::Display for DiskspecError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.what),
            line => write!(f, "{}:{line}: {}", self.file, self.what),
        }
    }
}
impl std::error::Error for DiskspecError {}

/// A value and the line where it begins.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Value {
    pub line: usize,
    pub data: Data,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Data {
    Words(String),
    List(Vec<Value>),
    Block(Block),
}

/// `kind name { … }`
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Block {
    pub line: usize,
    pub kind: String,
    pub name: String,
    pub entries: Vec<(String, Value)>,
}

/// Nesting deeper than this is no parameter file.
const DEPTH_MAX: usize = 16;
/// The largest public file has 20 KB; a bound keeps a wrong file from filling memory.
const FILE_BYTES_MAX: usize = 16 << 20;

/// Parses every top-level block of `text`.
pub(super) fn parse(file: &str, text: &str) -> Result<Vec<Block>, DiskspecError> {
    if text.len() > FILE_BYTES_MAX {
        let what = format!("has {} bytes; a parameter file has at most {FILE_BYTES_MAX}", text.len());
        return Err(DiskspecError { file: file.into(), line: 0, what });
    }
    let mut p = Parser { file, rest: text, line: 1, depth: 0 };
    let mut blocks = Vec::new();
    loop {
        p.skip_space();
        if p.rest.is_empty() {
            return Ok(blocks);
        }
        let v = p.value()?;
        match v.data {
            Data::Block(b) => blocks.push(b),
            _ => return Err(p.error_at(v.line, "expected a block `type name { … }`")),
        }
    }
}

struct Parser<'a> {
    file: &'a str,
    rest: &'a str,
    line: usize,
    depth: usize,
}

impl Parser<'_> {
    fn error_at(&self, line: usize, what: impl Into<String>) -> DiskspecError {
        DiskspecError { file: self.file.into(), line, what: what.into() }
    }

    fn error(&self, what: impl Into<String>) -> DiskspecError {
        self.error_at(self.line, what)
    }

    fn bump(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        self.line += usize::from(c == '\n');
        Some(c)
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn skip_space(&mut self) {
        while let Some(c) = self.peek() {
            if c == '#' {
                while self.peek().is_some_and(|c| c != '\n') {
                    self.bump();
                }
            } else if c.is_whitespace() {
                self.bump();
            } else {
                return;
            }
        }
    }

    /// Words up to one of `{ } [ ] , =` or a comment, blanks squeezed.
    fn words(&mut self) -> String {
        let mut out = String::new();
        loop {
            self.skip_space();
            let word_len = self.rest.find(|c: char| c.is_whitespace() || "{}[],=#".contains(c));
            let word = &self.rest[..word_len.unwrap_or(self.rest.len())];
            if word.is_empty() {
                return out;
            }
            if !out.is_empty() {
                out.push(' ');
            }
            out.push_str(word);
            self.rest = &self.rest[word.len()..];
        }
    }

    fn value(&mut self) -> Result<Value, DiskspecError> {
        self.skip_space();
        let line = self.line;
        if self.peek() == Some('[') {
            self.bump();
            return Ok(Value { line, data: Data::List(self.list()?) });
        }
        let words = self.words();
        if self.peek() != Some('{') {
            if words.is_empty() {
                return Err(self.error("expected a value"));
            }
            return Ok(Value { line, data: Data::Words(words) });
        }
        self.bump();
        let (kind, name) = words.split_once(' ').unwrap_or((&words, ""));
        let (kind, name) = (kind.to_string(), name.to_string());
        Ok(Value { line, data: Data::Block(Block { line, kind, name, entries: self.entries()? }) })
    }

    fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T, DiskspecError>) -> Result<T, DiskspecError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.error(format!("nested deeper than {DEPTH_MAX} levels")));
        }
        let out = inner(self)?;
        self.depth -= 1;
        Ok(out)
    }

    fn list(&mut self) -> Result<Vec<Value>, DiskspecError> {
        self.nested(|p| {
            let mut out = Vec::new();
            while p.more(']')? {
                out.push(p.value()?);
            }
            Ok(out)
        })
    }

    fn entries(&mut self) -> Result<Vec<(String, Value)>, DiskspecError> {
        self.nested(|p| {
            let mut out = Vec::new();
            while p.more('}')? {
                let key = p.words();
                if key.is_empty() || p.peek() != Some('=') {
                    return Err(p.error(format!("expected `key = value`, found `{key}`")));
                }
                p.bump();
                out.push((key, p.value()?));
            }
            Ok(out)
        })
    }

    /// Skips commas; false at `close`, which it takes.
    fn more(&mut self, close: char) -> Result<bool, DiskspecError> {
        loop {
            self.skip_space();
            match self.peek() {
                None => return Err(self.error(format!("the file ends before `{close}`"))),
                Some(',') => {
                    self.bump();
                }
                Some(c) if c == close => {
                    self.bump();
                    return Ok(false);
                }
                Some(c) if "]}=".contains(c) => return Err(self.error(format!("unexpected `{c}`"))),
                Some(_) => return Ok(true),
            }
        }
    }
}
