//! Reading a small file that a user names: whole, and never beyond a size limit.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Reads a regular file of at most `most` bytes. Pipes and devices are neither opened nor read.
///
/// # Errors
///
/// The file cannot be read, is not a regular file, or is larger.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let irregular = || io::Error::new(io::ErrorKind::InvalidInput, "no regular file");
    // Checked first: opening a device may have side effects.
    if !std::fs::metadata(path)?.is_file() {
        return Err(irregular());
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(irregular());
    }
    let mut bytes = Vec::new();
    // The reported size is wrong in /proc and while the file grows.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let why = format!("larger than {most} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(bytes)
}

/// Reads a regular UTF-8 file of at most `most` bytes.
///
/// # Errors
///
/// The errors of [`read`], and an error if the file is not valid UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    let no_text = |_| io::Error::new(io::ErrorKind::InvalidData, "not text in UTF-8");
    String::from_utf8(read(path, most)?).map_err(no_text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_regular_small_and_text() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "four").unwrap();
        assert_eq!(read_text(&path, 4).unwrap(), "four");
        let large = read(&path, 3).unwrap_err();
        assert_eq!(large.to_string(), "larger than 3 bytes");
        std::fs::write(&path, b"\xff").unwrap();
        assert_eq!(read(&path, 4).unwrap(), b"\xff");
        assert!(read_text(&path, 4).is_err());
        // Its reported size is 0, but it has more bytes.
        assert!(read(Path::new("/proc/self/status"), 4).is_err());
        let pipe = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, Mode::RUSR).unwrap();
        for irregular in [pipe.as_path(), Path::new("/dev/zero"), dir.path()] {
            let refused = read(irregular, 4).unwrap_err();
            assert_eq!(refused.to_string(), "no regular file", "{irregular:?}");
        }
        assert!(read(&dir.path().join("none"), 4).is_err());
    }
}
