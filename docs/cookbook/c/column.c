/* Prints the mean of one column of a float32 matrix in a .npy file: column FILE NUMBER */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int count, char **arguments) {
    if (count != 3) return fprintf(stderr, "usage: column FILE NUMBER\n"), 2;
    int file = open(arguments[1], O_RDONLY);
    struct stat about;
    if (file < 0 || fstat(file, &about) < 0) return perror(arguments[1]), 1;
    const unsigned char *npy = mmap(NULL, about.st_size, PROT_READ, MAP_SHARED, file, 0);
    if (npy == MAP_FAILED) return perror(arguments[1]), 1;

    /* Byte 6 is the version; of version 1, bytes 8 and 9 are the length of the header. */
    size_t start = 10 + npy[8] + 256 * npy[9];
    char header[65536] = "";
    memcpy(header, npy + 10, start - 10);
    const char *shape = strstr(header, "'shape': (");
    size_t rows, columns, column = strtoul(arguments[2], NULL, 10);
    if (npy[6] != 1 || !strstr(header, "'descr': '<f4'")
        || !strstr(header, "'fortran_order': False") || !shape
        || sscanf(shape, "'shape': (%zu, %zu)", &rows, &columns) != 2 || column >= columns)
        return fprintf(stderr, "%s: not a float32 matrix with such a column\n", arguments[1]), 1;

    const float *matrix = (const float *)(npy + start);
    double sum = 0;
    for (size_t row = 0; row < rows; row++) sum += matrix[row * columns + column];
    printf("%zu x %zu, mean of column %zu: %.6f\n", rows, columns, column, sum / rows);
    return 0;
}
