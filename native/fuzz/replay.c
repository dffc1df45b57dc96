/* Runs a fuzz target once over each file named: the corpus replay for compilers without libFuzzer. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int run(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0) return 0;
    long n = ftell(file);
    rewind(file);
    uint8_t *bytes = n >= 0 ? malloc((size_t)n + 1) : NULL;
    int ok = bytes && fread(bytes, 1, (size_t)n, file) == (size_t)n;
    fclose(file);
    if (ok) LLVMFuzzerTestOneInput(bytes, (size_t)n);
    free(bytes);
    return ok;
}

int main(int n_arguments, char **arguments) {
    for (int i = 1; i < n_arguments; i++) {
        if (run(arguments[i])) continue;
        fprintf(stderr, "cannot read %s\n", arguments[i]);
        return 2;
    }
    printf("%d inputs\n", n_arguments - 1);
    return 0;
}
