# Reads a .npy file of numbers or truth values. Matrices get the shape that NumPy shows.
read_npy <- function(path) {
  file <- file(path, "rb")
  on.exit(close(file))
  start <- readBin(file, "raw", 10)
  stopifnot(identical(start[2:6], charToRaw("NUMPY")), start[7] == 1)
  header <- readChar(file, as.integer(start[9]) + 256L * as.integer(start[10]), useBytes = TRUE)
  part <- function(pattern) sub(paste0(".*", pattern, ".*"), "\\1", header)
  type <- part("'descr': '([^']*)'")
  shape <- as.integer(regmatches(part("'shape': \\(([^)]*)\\)"),
                                 gregexpr("[0-9]+", part("'shape': \\(([^)]*)\\)")))[[1]])
  kind <- substr(type, 2, 2)
  size <- as.integer(substring(type, 3))
  count <- prod(shape)
  stopifnot(kind %in% c("f", "i", "u", "b"), size <= 8, !(kind != "f" && size == 8))
  values <- switch(kind,
    f = readBin(file, "double", count, size, endian = "little"),
    b = as.logical(readBin(file, "integer", count, 1)),
    readBin(file, "integer", count, size, signed = kind == "i" || size == 4, endian = "little"))
  if (length(shape) < 2) return(values)
  by_row <- grepl("'fortran_order': False", header)
  if (by_row) aperm(array(values, rev(shape))) else array(values, shape)
}
